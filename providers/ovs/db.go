package ovs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/vswitch"
	"github.com/go-logr/logr"
	"github.com/ovn-org/libovsdb/cache"
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// A db is the database of one Open vSwitch, over a connection that is replaced when it is lost.
type db struct {
	Options
	tables model.ClientDBModel
	model  model.DatabaseModel
	permit *providers.Permit
	health health

	mu     sync.Mutex
	conn   *conn          // the newest; nil before the first
	closed chan struct{}  // closed with the provider
	conns  sync.WaitGroup // what ends the connections

	flowing sync.Mutex // held while flows are changed
}

// A conn is one connection. When it is lost, no part of it is used again.
type conn struct {
	client client.Client
	drop   func()          // closes it
	lost   <-chan struct{} // closed once it is lost or closed

	mu    sync.Mutex
	cur   int           // last known cur_cfg
	moved chan struct{} // closed when cur moves
}

// newDB prepares the types of the tables that the nouns read; a server may have fewer or more.
func newDB(o Options, nouns map[string]noun) (*db, error) {
	types := map[string]model.Model{rootRows.table: rootRows.row}
	for _, n := range nouns {
		for _, r := range n.reads() {
			types[r.table] = r.row
		}
	}
	tables, err := model.NewClientDBModel("Open_vSwitch", types)
	if err != nil {
		return nil, err
	}
	m, errs := model.NewDatabaseModel(vswitch.Parsed(), tables)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &db{Options: o, tables: tables, model: m, permit: new(providers.Permit), health: health{idle: o.Settle / 2}, closed: make(chan struct{})}, nil
}

// connect returns the connection; a new one when there is none or it was lost.
func (d *db) connect(ctx context.Context) (*conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		select {
		case <-d.conn.lost:
		default:
			return d.conn, nil
		}
	}
	c, err := d.dial(ctx, func() {}, reading{table: rootRows.table, columns: []string{"cur_cfg"}})
	if err != nil {
		d.health.note(ctx, err)
		return nil, err
	}
	d.conn = c
	return c, nil
}

// dial makes a connection on which the rows of some readings are monitored; cur_cfg has to be among them. It calls event when one
// of them has changed. d.mu is held.
func (d *db) dial(ctx context.Context, event func(), monitored ...reading) (*conn, error) {
	select {
	case <-d.closed:
		return nil, errors.New("the provider is closed")
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, d.Settle)
	defer cancel()
	c, err := d.open(ctx, event, monitored)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.Endpoint, err)
	}
	return c, nil
}

// unambiguous returns an endpoint as the client reads it: as a URL. Of a relative path it would make the default socket, that is
// another switch, and of a path with a #, another path.
func unambiguous(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix:")
	if !ok {
		return endpoint, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return (&url.URL{Scheme: client.UNIX, Path: path}).String(), nil
}

func (d *db) open(ctx context.Context, event func(), monitored []reading) (*conn, error) {
	log := logr.FromSlogHandler(d.Logger.Handler())
	endpoint, err := unambiguous(d.Endpoint)
	if err != nil {
		return nil, err
	}
	opts := []client.Option{client.WithEndpoint(endpoint), client.WithLogger(&log)}
	if d.TLS != nil {
		opts = append(opts, client.WithTLSConfig(d.TLS))
	}
	// The client could reconnect by itself, but then calls would block while there is no connection, and its cache
	// would be outdated for a while. A new client for each connection has neither problem.
	cl, err := client.NewOVSDBClient(d.tables, opts...)
	if err != nil {
		return nil, err
	}
	lost := make(chan struct{})
	c := &conn{client: cl, lost: lost, drop: sync.OnceFunc(func() { close(lost) }), moved: make(chan struct{})}
	d.conns.Go(func() {
		select {
		case <-cl.DisconnectNotify():
			c.drop()
		case <-d.closed:
			c.drop()
			cl.Close()
		case <-lost:
			cl.Close() // waits for the calls in flight
		}
	})
	if err := cl.Connect(ctx); err != nil {
		c.drop()
		return nil, err
	}
	cl.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, row model.Model) { c.heard(row); event() },
		UpdateFunc: func(_ string, _, row model.Model) { c.heard(row); event() },
		DeleteFunc: func(string, model.Model) { event() },
	})
	monitor := cl.NewMonitor()
	for _, r := range monitored {
		monitor.Tables = append(monitor.Tables, client.TableMonitor{Table: r.table, Fields: r.columns})
	}
	if _, err := cl.Monitor(ctx, monitor); err != nil {
		c.drop()
		return nil, err
	}
	return c, nil
}

// heard reads cur_cfg from a row of the cache. It is called for every change, in order.
func (c *conn) heard(row model.Model) {
	root, ok := row.(*vswitch.OpenvSwitch)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cur = root.CurCfg
	close(c.moved)
	c.moved = make(chan struct{})
}

var errLost = errors.New("the connection to ovsdb-server was lost")

// reached waits until ovs-vswitchd has applied configuration cfg.
func (c *conn) reached(ctx context.Context, cfg int) error {
	for {
		c.mu.Lock()
		cur, moved := c.cur, c.moved
		c.mu.Unlock()
		if cur >= cfg {
			return nil
		}
		select {
		case <-moved:
		case <-c.lost:
			return errLost
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// transact sends one transaction. An error means that there was no answer, and the transaction may have been carried out;
// a fault means that it was not sent.
//
// The client connects by itself, so the permit is checked here and not where bytes are sent. What a suspended process
// sends after this check still has no effect: the database holds the epoch, and every change is guarded by it.
func (d *db) transact(ctx context.Context, c *conn, ops []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	if err := d.permit.Check(); err != nil {
		return nil, &fault{providers.Transient, err}
	}
	limited, cancel := context.WithTimeout(ctx, d.Settle)
	defer cancel()
	start := time.Now()
	results, err := c.client.Transact(limited, ops...)
	d.Logger.Debug("transact", "endpoint", d.Endpoint, "operations", len(ops), "took", time.Since(start), "answered", err == nil)
	if err != nil {
		if ctx.Err() == nil {
			c.drop() // it is lost, or the far side hangs
		}
		err = fmt.Errorf("no answer from ovsdb-server: %w", err)
		d.health.note(ctx, err)
		return nil, err
	}
	d.health.note(ctx, nil)
	return results, nil
}

// close closes the connections and waits for their goroutines.
func (d *db) close() error {
	d.mu.Lock()
	select {
	case <-d.closed:
	default:
		close(d.closed)
	}
	d.mu.Unlock()
	d.conns.Wait()
	return nil
}

// A reading is the part of a table that a noun reads.
type reading struct {
	table   string
	row     model.Model // has the type of its rows
	columns []string    // besides _uuid; statistics and the like are most of the database, and not needed
	named   bool        // only rows with the requested names; otherwise all
}

// rootRows reads the only row of Open_vSwitch. It is in every view.
var rootRows = reading{table: vswitch.OpenvSwitchTable, row: &vswitch.OpenvSwitch{}, columns: []string{"next_cfg", "cur_cfg", "external_ids"}}

// selects returns the operation that reads the rows for which all conditions hold.
func (r reading) selects(where ...ovsdb.Condition) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationSelect, Table: r.table, Where: where, Columns: slices.Concat([]string{"_uuid"}, r.columns),
	}
}

// A view is an atomic snapshot of what a noun reads.
type view struct {
	root *vswitch.OpenvSwitch
	rows map[string]model.Model // by UUID
	sets map[string]*flowSet    // by their ids, with what the switch has of them; nil unless that was asked
}

// view reads the rows with the given names; nil means all.
func (d *db) view(ctx context.Context, readings []reading, names []string) (*view, error) {
	c, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	ops := []ovsdb.Operation{rootRows.selects()}
	for _, r := range readings {
		if names == nil || !r.named {
			ops = append(ops, r.selects())
			continue
		}
		for _, n := range names {
			ops = append(ops, r.selects(named(n)))
		}
	}
	results, err := d.transact(ctx, c, ops)
	if err != nil {
		return nil, err
	}
	if _, err := ovsdb.CheckOperationResults(results, ops); err != nil {
		return nil, err
	}
	v, err := d.picture(ops, results)
	if err == nil && names != nil && !v.whole() {
		return d.view(ctx, readings, nil)
	}
	return v, err
}

// whole reports whether the interfaces of all ports of a view are in it. Those of a bond have other names than the port, which
// only a view of everything shows in one transaction.
func (v *view) whole() bool {
	return find(v, func(p *vswitch.Port) bool {
		return slices.ContainsFunc(p.Interfaces, func(uuid string) bool { return row[vswitch.Interface](v, uuid) == nil })
	}) == nil
}

// picture builds a view from the answers to selects.
func (d *db) picture(ops []ovsdb.Operation, results []ovsdb.OperationResult) (*view, error) {
	v := &view{rows: map[string]model.Model{}}
	for i, op := range ops {
		for _, row := range results[i].Rows {
			m, err := d.model.NewModel(op.Table)
			if err != nil {
				return nil, err
			}
			uuid, err := d.read(row, m)
			if err != nil {
				return nil, err
			}
			v.rows[uuid] = m
		}
	}
	if v.root = find(v, func(*vswitch.OpenvSwitch) bool { return true }); v.root == nil {
		return nil, errors.New("the database is empty: Open vSwitch has never been started with it")
	}
	d.health.acts(v.root.CurCfg, v.root.NextCfg)
	return v, nil
}

// read fills m from a row of its table and returns the UUID.
func (d *db) read(row ovsdb.Row, m model.Model) (string, error) {
	info, err := d.model.NewModelInfo(m)
	if err != nil {
		return "", err
	}
	if err := d.model.Mapper.GetRowData(&row, info); err != nil {
		return "", err
	}
	uuid, ok := row["_uuid"].(ovsdb.UUID)
	if !ok {
		return "", errors.New("ovsdb-server returned a row without a UUID")
	}
	return uuid.GoUUID, info.SetField("_uuid", uuid.GoUUID)
}

// all returns the rows of a view that are of type R, in no order.
func all[R any](v *view) iter.Seq[*R] {
	return func(yield func(*R) bool) {
		for _, m := range v.rows {
			if r, ok := m.(*R); ok && !yield(r) {
				return
			}
		}
	}
}

// find returns a row for which is returns true; nil when there is none.
func find[R any](v *view, is func(*R) bool) *R {
	for r := range all[R](v) {
		if is(r) {
			return r
		}
	}
	return nil
}

// row returns the row with a UUID; nil when the view has none of type R.
func row[R any](v *view, uuid string) *R {
	r, _ := v.rows[uuid].(*R)
	return r
}

func named(name string) ovsdb.Condition {
	return ovsdb.NewCondition("name", ovsdb.ConditionEqual, name)
}

func uuidIs(uuid string) ovsdb.Condition {
	return ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})
}

package ovs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/vswitch"
)

// A flow is one flow of a bridge as ovs-ofctl prints it, with the numbers of ports instead of their names.
type flow struct {
	table   string // its number
	match   string // priority and match; empty: the default priority, and every packet
	extras  string // timeouts, importance and flags
	actions string
	cookie  uint64
}

// A slot is what only one flow of a bridge has: adding another replaces it.
type slot struct{ table, match string }

func (f flow) slot() slot { return slot{f.table, f.match} }

// is reports whether two flows do the same; their cookies may differ.
func (f flow) is(g flow) bool {
	f.cookie = g.cookie
	return f == g
}

// String returns the flow as ovs-ofctl accepts it, without its cookie.
func (f flow) String() string {
	return joined("table="+f.table, f.match, f.extras, "actions="+f.actions)
}

// joined returns the parts of a flow that are not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ",")
}

// dialect is the version of OpenFlow that is spoken. What a switch returns is only comparable with what it was sent in the same version.
const dialect = "OpenFlow14"

var (
	// dumped is a flow in the output of dump-flows.
	dumped = regexp.MustCompile(`^ (?:cookie=0x([0-9a-f]+), )?(?:table=([0-9]+), )?((?:(?:idle_timeout=|hard_timeout=|importance=)[0-9]+,? |(?:send_flow_rem|check_overlap|reset_counts|no_packet_counts|no_byte_counts) )*)(?:(\S*[^\s,]) )?actions=(.*)$`)
	// parsed is a flow in the output of parse-flows.
	parsed = regexp.MustCompile(`^OFPT_FLOW_MOD \(OF1\.4\) \(xid=0x[0-9a-f]+\): ADD (?:table:([0-9]+) )?(?:(\S+) )?cookie:0x([0-9a-f]+) (.*?)actions=(.*)$`)
	// unfit are actions by which the switch itself adds and deletes flows, those of others too, or lets a flow expire.
	unfit = regexp.MustCompile(`\b(learn|fin_timeout)\(`)
	// refusal is the answer of a switch that has changed nothing.
	refusal = regexp.MustCompile(`(?m)^Error OFP.*$`)
	// faulty is the message about a flow in a file.
	faulty = regexp.MustCompile(`(?m)^ovs-ofctl: -:([0-9]+): (.*)$`)
)

// faults are what ovs-ofctl says of flows without saying of which, and what that means. When a field of a match is ignored because one that
// it needs is missing, the flow would match more packets than it seems to.
var faults = map[string]string{
	"normalization changed ofp_match": "a field of its match has no effect because one that it needs is missing, as ip is for nw_src, or tcp for tp_dst",
	"no usable protocol":              "it cannot be expressed in " + dialect + ", for example because its actions need a match that it lacks",
}

// faultOf returns what the messages of ovs-ofctl mean; empty when they have none of the faults.
func faultOf(said string) string {
	for text, why := range faults {
		if strings.Contains(said, text) {
			return why
		}
	}
	return ""
}

// A badFlow is one that ovs-ofctl does not accept.
type badFlow struct {
	at  int // its position
	why string
}

func (b *badFlow) Error() string { return b.why }

// largest bounds what ovs-ofctl may print: a million flows.
const largest = 256 << 20

// output keeps what a program prints, up to a limit.
type output struct {
	bytes.Buffer
	most int
}

func (o *output) Write(b []byte) (int, error) {
	if o.Len()+len(b) > o.most {
		return 0, fmt.Errorf("the output has more than %d bytes", o.most)
	}
	return o.Buffer.Write(b)
}

// ofctl runs ovs-ofctl with an input. Nothing of that is ever an argument: what is in a flow cannot become an option. An error of type
// *exec.ExitError contains what the program says.
func (d *db) ofctl(ctx context.Context, input string, args ...string) (out, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.Settle)
	defer cancel()
	// The program also ends by itself, in case that this process does not live to end it.
	limit := strconv.Itoa(max(1, int(d.Settle.Seconds())))
	cmd := exec.CommandContext(ctx, "ovs-ofctl", slices.Concat([]string{"--timeout=" + limit, "-vsyslog:off", "-O", dialect}, args)...)
	// In a process group of its own it does not get the signals of a terminal: a step that has begun ends cleanly.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin = strings.NewReader(input)
	stdout, stderr := &output{most: largest}, &output{most: 1 << 20}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := d.permit.Check(); err != nil {
		return "", "", err
	}
	err = cmd.Run()
	said = strings.TrimSpace(stderr.String())
	switch {
	case errors.Is(err, exec.ErrNotFound):
		err = refuse(providers.Denied, "flows need the program ovs-ofctl, which is part of Open vSwitch: %w", err)
	case err != nil && ctx.Err() != nil:
		err = fmt.Errorf("ovs-ofctl: %w", ctx.Err())
	case err != nil:
		err = fmt.Errorf("%s (%w)", strings.TrimPrefix(said, "ovs-ofctl: "), err)
	}
	return stdout.String(), said, err
}

// management returns the address of the socket through which ovs-vswitchd is asked about the flows of a bridge.
func (d *db) management(bridge string) (string, error) {
	dir := d.RunDir
	if socket, ok := strings.CutPrefix(d.Endpoint, "unix:"); ok && dir == "" {
		dir = filepath.Dir(socket)
	}
	if strings.Contains(bridge, "/") { // which ovs-vswitchd never creates
		return "", refuse(providers.Invalid, "%q is not the name of a bridge", bridge)
	}
	if dir == "" {
		return "", refuse(providers.Denied, "flows are reached through a socket of ovs-vswitchd, not through its database: the run directory of Open vSwitch on this machine is required besides %s", d.Endpoint)
	}
	dir, err := filepath.Abs(dir)
	return "unix:" + filepath.Join(dir, bridge+".mgmt"), err
}

// flows returns the flows of a bridge whose cookies equal one in the bits of a mask.
func (d *db) flows(ctx context.Context, bridge string, cookie, mask uint64) ([]flow, error) {
	socket, err := d.management(bridge)
	if err != nil {
		return nil, err
	}
	out, _, err := d.ofctl(ctx, "", "--no-stats", "--no-names", "dump-flows", socket, fmt.Sprintf("cookie=%#x/%#x", cookie, mask))
	if err != nil {
		return nil, fmt.Errorf("ask ovs-vswitchd for the flows of bridge %s: %w", bridge, err)
	}
	return readDump(out)
}

// readDump reads flows from what dump-flows prints.
func readDump(out string) ([]flow, error) {
	var flows []flow
	for line := range strings.Lines(out) {
		m := dumped.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			return nil, fmt.Errorf("ovs-ofctl dump-flows printed %q, which is not a flow", line)
		}
		extras := strings.Join(strings.FieldsFunc(m[3], func(r rune) bool { return r == ' ' || r == ',' }), ",")
		cookie, err := strconv.ParseUint(cmp.Or(m[1], "0"), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("ovs-ofctl dump-flows printed %q: %w", line, err)
		}
		flows = append(flows, flow{table: cmp.Or(m[2], "0"), match: m[4], extras: extras, actions: m[5], cookie: cookie})
	}
	return flows, nil
}

// parse returns flows as the switch will show them. They are encoded as messages of OpenFlow and printed from those: both ways lose and
// rewrite the same. The first that ovs-ofctl does not accept is an error of type *badFlow.
func (d *db) parse(ctx context.Context, lines []string) ([]flow, error) {
	if len(lines) == 0 {
		return nil, nil
	}
	var input strings.Builder
	for i, line := range lines {
		if strings.ContainsAny(line, "\n\r#") { // which ovs-ofctl would read as the end of the flow
			return nil, &badFlow{i, "a flow is one line, without #"}
		}
		fmt.Fprintf(&input, "cookie=%d,%s\n", i+1, line)
	}
	out, said, err := d.ofctl(ctx, input.String(), "parse-flows", "-")
	if m := faulty.FindStringSubmatch(said); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= len(lines) {
			why := m[2]
			if strings.Contains(why, "unknown port") {
				why += "; the name of a port is written in double quotes"
			}
			return nil, &badFlow{n - 1, why}
		}
	}
	if faultOf(said) != "" {
		return nil, d.faulty(ctx, lines)
	}
	if err != nil {
		return nil, err
	}
	return readParsed(out, len(lines))
}

// readParsed reads n flows, whose cookies are 1, 2 and so on, from what parse-flows prints.
func readParsed(out string, n int) ([]flow, error) {
	var flows []flow
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "OFPT_") {
			continue // which protocols it can use
		}
		i := len(flows)
		m := parsed.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		switch {
		case i >= n:
			return nil, fmt.Errorf("ovs-ofctl parse-flows printed more than the %d flows that it was given", n)
		case m == nil:
			return nil, &badFlow{i, fmt.Sprintf("ovs-ofctl reads it as %q", line)}
		case m[3] != strconv.FormatInt(int64(i+1), 16) || strings.Contains(m[5], fmt.Sprintf("cookie=%#x", ours>>48)):
			return nil, &badFlow{i, "its cookie follows from the name of the flow set: it cannot have another"}
		case unfit.MatchString(m[5]):
			return nil, &badFlow{i, fmt.Sprintf("a flow of a flow set cannot have the action %s: it makes the switch change flows by itself", unfit.FindStringSubmatch(m[5])[1])}
		case m[4] != "":
			return nil, &badFlow{i, fmt.Sprintf("a flow of a flow set has no timeouts, importance or flags, and this one has %s", strings.TrimSpace(m[4]))}
		}
		flows = append(flows, flow{table: cmp.Or(m[1], "0"), match: m[2], actions: m[5]})
	}
	if len(flows) < n {
		return nil, fmt.Errorf("ovs-ofctl parse-flows printed %d of %d flows", len(flows), n)
	}
	return flows, nil
}

// faulty returns which of some flows has a fault.
func (d *db) faulty(ctx context.Context, lines []string) error {
	for i, line := range lines {
		_, said, err := d.ofctl(ctx, line+"\n", "parse-flows", "-")
		if why := faultOf(said); why != "" {
			return &badFlow{i, why}
		}
		if err != nil {
			return err
		}
	}
	return errors.New("ovs-ofctl does not accept these flows together, but each alone")
}

// program changes flows of a bridge with a cookie, all of them or none: gone are removed and added are added or replaced. What the
// switch refuses is a fault of class Invalid, after which nothing has changed.
func (d *db) program(ctx context.Context, bridge string, cookie uint64, gone, added []flow) error {
	if len(gone)+len(added) == 0 {
		return nil
	}
	socket, err := d.management(bridge)
	if err != nil {
		return err
	}
	var input strings.Builder
	for _, f := range gone {
		fmt.Fprintf(&input, "delete_strict %s\n", joined(fmt.Sprintf("cookie=%#x/-1", cookie), "table="+f.table, f.match))
	}
	for _, f := range added {
		fmt.Fprintf(&input, "add cookie=%#x,%s\n", cookie, f)
	}
	_, said, err := d.ofctl(ctx, input.String(), "--bundle", "add-flows", socket, "-")
	switch {
	case err == nil:
		return nil
	case refusal.MatchString(said) && ctx.Err() == nil:
		return refuse(providers.Invalid, "the switch refuses a flow: %s", refusal.FindString(said))
	}
	return refuse(providers.Unknown, "change the flows of bridge %s: %w", bridge, err)
}

// quoted is the name of a port in a flow.
var quoted = regexp.MustCompile(`"[^"]*"`)

// numbered returns a flow of a bridge with the numbers of its ports instead of their names in quotes.
func numbered(v *view, b *vswitch.Bridge, line string) (string, error) {
	var err error
	line = quoted.ReplaceAllStringFunc(line, func(text string) string {
		i := v.interfaceCalled(b, strings.Trim(text, `"`))
		switch {
		case i == nil:
			err = refuse(providers.Absent, "bridge %s has no port %s", b.Name, text)
		case i.Ofport == nil || *i.Ofport < 0:
			err = refuse(providers.Busy, "port %s has no number: ovs-vswitchd did not create it", text)
		default:
			return strconv.Itoa(*i.Ofport)
		}
		return text
	})
	return line, err
}

// interfaceCalled returns the interface of a bridge with a name; nil when there is none.
func (v *view) interfaceCalled(b *vswitch.Bridge, name string) *vswitch.Interface {
	for _, port := range b.Ports {
		p := row[vswitch.Port](v, port)
		if p == nil {
			continue
		}
		for _, uuid := range p.Interfaces {
			if i := row[vswitch.Interface](v, uuid); i != nil && i.Name == name {
				return i
			}
		}
	}
	return nil
}

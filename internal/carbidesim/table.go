package carbidesim

// table holds the objects of one kind by id. An object is replaced, never changed in place, so it may be read without a
// lock, and a copy of the map is a snapshot.
type table[T any] struct {
	rows  map[string]*T
	views []view[T]
	log   *changes
}

// view is something that is kept in step with a table.
type view[T any] interface {
	add(id string, row *T)
	remove(id string, row *T)
}

// changes records how to undo what a call has done so far.
type changes struct {
	undo []func()
}

func newTable[T any](log *changes, views ...view[T]) *table[T] {
	return &table[T]{rows: map[string]*T{}, views: views, log: log}
}

func (t *table[T]) get(id string) *T { return t.rows[id] }

func (t *table[T]) put(id string, row *T) {
	old := t.rows[id]
	t.swap(id, old, row)
	t.log.undo = append(t.log.undo, func() { t.swap(id, row, old) })
}

func (t *table[T]) drop(id string) { t.put(id, nil) }

func (t *table[T]) swap(id string, from, to *T) {
	if from != nil {
		for _, v := range t.views {
			v.remove(id, from)
		}
	}
	if to == nil {
		delete(t.rows, id)
		return
	}
	t.rows[id] = to
	for _, v := range t.views {
		v.add(id, to)
	}
}

// load fills an empty table with the rows of a file.
func (t *table[T]) load(rows map[string]*T) {
	for id, row := range rows {
		t.swap(id, nil, row)
	}
}

// lookup finds the ids of rows by their content.
type lookup[T any] struct {
	keys func(*T) []string
	ids  map[string]map[string]bool
}

func newLookup[T any](keys func(*T) []string) *lookup[T] {
	return &lookup[T]{keys: keys, ids: map[string]map[string]bool{}}
}

// of returns the ids of the rows that have the key.
func (l *lookup[T]) of(key string) map[string]bool { return l.ids[key] }

func (l *lookup[T]) add(id string, row *T) {
	for _, key := range l.keys(row) {
		if l.ids[key] == nil {
			l.ids[key] = map[string]bool{}
		}
		l.ids[key][id] = true
	}
}

func (l *lookup[T]) remove(id string, row *T) {
	for _, key := range l.keys(row) {
		delete(l.ids[key], id)
		if len(l.ids[key]) == 0 {
			delete(l.ids, key)
		}
	}
}

// some returns the keys that are not empty.
func some(keys ...string) []string {
	out := keys[:0]
	for _, k := range keys {
		if k != "" {
			out = append(out, k)
		}
	}
	return out
}

// numbers is the set of numbers from a pool that rows hold.
type numbers[T any] struct {
	of   func(*T) uint32 // 0: the row holds none
	used map[uint32]bool
	low  map[Range]uint32 // below it everything in the range is taken; saves searching it again
}

func newNumbers[T any](of func(*T) uint32) *numbers[T] {
	return &numbers[T]{of: of, used: map[uint32]bool{}, low: map[Range]uint32{}}
}

// free returns the lowest number of the range that no row holds.
func (n *numbers[T]) free(r Range) (uint32, bool) {
	number := max(n.low[r], r.First)
	for n.used[number] {
		number++
	}
	n.low[r] = number
	return number, r.has(number)
}

// grant finds the number for a new row: the requested one, or the lowest free one. The refusal of a number that cannot be
// requested, or is taken, differs between pools.
func (n *numbers[T]) grant(pool string, auto, requested Range, want *uint32, refuse func(uint32) error) (uint32, error) {
	from := auto
	if want != nil {
		from = requested
	}
	number, ok := n.free(from)
	switch {
	case !ok:
		return 0, exhausted(pool)
	case want == nil:
		return number, nil
	case !requested.has(*want) || n.used[*want]:
		return 0, refuse(*want)
	}
	return *want, nil
}

func (n *numbers[T]) add(_ string, row *T) {
	if number := n.of(row); number != 0 {
		n.used[number] = true
	}
}

func (n *numbers[T]) remove(_ string, row *T) {
	number := n.of(row)
	if number == 0 {
		return
	}
	delete(n.used, number)
	for r, low := range n.low {
		n.low[r] = min(low, number)
	}
}

func (r Range) has(number uint32) bool {
	return number != 0 && r.First <= number && number <= r.Last
}

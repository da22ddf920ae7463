package task_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/agent/task"
	"converge.dev/converge/internal/dsse"
)

// A kind of envelope, for the vectors.
const (
	aTask   = "task"
	aHead   = "head"
	aResult = "result"
)

// A vector is an envelope, and the one check that must refuse it.
type vector struct {
	name, kind string
	want       task.Check
	envelope   []byte
	change     func(*task.Checker) // of the good checker
}

// open has the envelope checked. skip may be nil.
func (v vector) open(skip func(task.Check) bool) error {
	var err error
	c := checker()
	if v.change != nil {
		v.change(c)
	}
	switch v.kind {
	case aTask:
		_, err = c.Skipping(skip).Task(v.envelope)
	case aHead:
		_, err = c.Skipping(skip).Head(v.envelope)
	case aResult:
		_, err = task.OpenResultSkipping(v.envelope, public(nodeKey), node, digestOf(goodTask()), skip)
	}
	return err
}

func skipping(checks ...task.Check) func(task.Check) bool {
	return func(c task.Check) bool { return slices.Contains(checks, c) }
}

// order is the order of rule T2.
var order = []task.Check{
	task.CheckSize, task.CheckEnvelope, task.CheckSignatures, task.CheckKey, task.CheckKeyTime, task.CheckKeyType, task.CheckSignature,
	task.CheckType, task.CheckJSON, task.CheckFields, task.CheckKeyAction, task.CheckSite, task.CheckNode, task.CheckTask,
	task.CheckNotBefore, task.CheckLife, task.CheckExpired,
}

// checksOf returns the checks that a good envelope of a kind passes, as they run.
func checksOf(t *testing.T, kind string) []task.Check {
	t.Helper()
	v := vector{kind: kind}
	switch kind {
	case aTask:
		v.envelope = sign(goodTask(), siteKey)
	case aHead:
		v.envelope = sign(goodHead(), siteKey)
	case aResult:
		v.envelope = sign(goodResult(), nodeKey)
	}
	var ran []task.Check
	if err := v.open(func(c task.Check) bool { ran = append(ran, c); return false }); err != nil {
		t.Fatalf("good %s: %v", kind, err)
	}
	return ran
}

// replaced replaces the first occurrence, which must exist.
func replaced(in, old, new string) string {
	if !strings.Contains(in, old) {
		panic(old + " does not occur in " + in)
	}
	return strings.Replace(in, old, new, 1)
}

// text returns a good payload of a kind, with the type and the key that belong to it.
func text(kind string) (payloadType, text string, seed byte) {
	switch kind {
	case aTask:
		return task.Type, payload(goodTask()), siteKey
	case aHead:
		return task.HeadType, payload(goodHead()), siteKey
	}
	return task.ResultType, payload(goodResult()), nodeKey
}

// vectors returns all vectors.
var vectors = sync.OnceValue(func() []vector {
	var vs []vector
	add := func(name, kind string, want task.Check, envelope []byte, change ...func(*task.Checker)) {
		v := vector{name: kind + ": " + name, kind: kind, want: want, envelope: envelope}
		if len(change) > 0 {
			v.change = change[0]
		}
		vs = append(vs, v)
	}
	// payloads adds good envelopes around a spoilt payload.
	payloads := func(kind string, want task.Check, changes map[string][2]string) {
		payloadType, good, seed := text(kind)
		for name, c := range changes {
			add(name, kind, want, dsse.Seal(payloadType, []byte(replaced(good, c[0], c[1])), private(seed)))
		}
	}
	tasks := func(want task.Check, changes map[string]func(*task.Task)) {
		for name, f := range changes {
			t := goodTask()
			f(t)
			add(name, aTask, want, sign(t, siteKey))
		}
	}
	heads := func(want task.Check, changes map[string]func(*task.Head)) {
		for name, f := range changes {
			h := goodHead()
			f(h)
			add(name, aHead, want, sign(h, siteKey))
		}
	}

	// What each kind has in common.
	for _, kind := range []string{aTask, aHead, aResult} {
		payloadType, good, seed := text(kind)
		key := private(seed)
		envelope := string(dsse.Seal(payloadType, []byte(good), key))
		s := dsse.Sign(key, payloadType, []byte(good))
		sig, b64 := base64.StdEncoding.EncodeToString(s.Sig), base64.StdEncoding.EncodeToString([]byte(good))

		add("huge", kind, task.CheckSize, make([]byte, 4<<20))
		add("one byte too large", kind, task.CheckSize, []byte(envelope+strings.Repeat(" ", task.MaxSize+1-len(envelope))))
		for name, c := range map[string][2]string{
			"no bytes":                 {envelope, ``},
			"a bare payload":           {envelope, good},
			"in a list":                {envelope, `[` + envelope + `]`},
			"payload twice":            {`"payload":`, `"payload":"e30=","payload":`},
			"folded name":              {`"payload":`, `"PAYLOAD":`},
			"unknown name":             {`"payload":`, `"x":1,"payload":`},
			"data behind":              {`}]}`, `}]}{}`},
			"cut":                      {`}]}`, `}]`},
			"base64 of URLs":           {sig, strings.Repeat("-_", 43) + `==`},
			"base64 without padding":   {sig, strings.TrimRight(sig, "=")},
			"base64 with spare bits":   {sig, sig[:85] + string(sig[85]+1) + "=="},
			"base64 with a line break": {b64, b64[:4] + `\n` + b64[4:]},
			"base64 with a space":      {b64, b64[:4] + ` ` + b64[4:]},
			"payload is JSON":          {`"` + b64 + `"`, good},
			"payload is null":          {`"` + b64 + `"`, `null`},
			"no signature":             {`{"keyid":"` + s.KeyID + `","sig":"` + sig + `"}`, ``},
			"a short signature":        {sig, base64.StdEncoding.EncodeToString(s.Sig[:63])},
			"too many signatures":      {`[{`, `[` + strings.Repeat(`{"sig":"`+sig+`"},`, 32) + `{`},
		} {
			add(name, kind, task.CheckEnvelope, []byte(replaced(envelope, c[0], c[1])))
		}
		add("a stranger signs too", kind, task.CheckSignatures, dsse.Seal(payloadType, []byte(good), key, private(stranger)))
		add("signed twice", kind, task.CheckSignatures, dsse.Seal(payloadType, []byte(good), key, key))

		forged := func(name, keyID string, sig []byte) {
			e := dsse.Envelope{Type: payloadType, Payload: []byte(good), Signatures: []dsse.Signature{{KeyID: keyID, Sig: sig}}}
			add(name, kind, task.CheckSignature, e.JSON())
		}
		forged("signature of a stranger", s.KeyID, dsse.Sign(private(stranger), payloadType, []byte(good)).Sig)
		forged("signature over other bytes", s.KeyID, dsse.Sign(key, payloadType, []byte(good+" ")).Sig)
		forged("signature over another type", s.KeyID, dsse.Sign(key, payloadType+"2", []byte(good)).Sig)
		forged("signature over the bare payload", s.KeyID, ed25519.Sign(key, []byte(good)))
		forged("signature of zeros", s.KeyID, make([]byte, ed25519.SignatureSize))
		flipped := slices.Clone(s.Sig)
		flipped[63] ^= 0x80
		forged("a flipped bit", s.KeyID, flipped)

		for _, other := range []string{task.Type, task.HeadType, task.ResultType, "", strings.ToUpper(payloadType), payloadType + " ", "application/json"} {
			if other != payloadType {
				add("as "+other, kind, task.CheckType, dsse.Seal(other, []byte(good), key))
			}
		}
		for _, other := range []string{aTask, aHead, aResult} {
			if other != kind {
				_, foreign, _ := text(other)
				add("a "+other+" in its place", kind, task.CheckJSON, dsse.Seal(payloadType, []byte(foreign), key))
			}
		}
		payloads(kind, task.CheckJSON, map[string][2]string{
			"nothing":               {good, ``},
			"null":                  {good, `null`},
			"a list":                {good, `[` + good + `]`},
			"a text":                {good, `"{}"`},
			"empty object":          {good, `{}`},
			"unknown name":          {`{`, `{"run":"x",`},
			"empty name":            {`{`, `{"":"x",`},
			"node twice":            {`"node":`, `"node":"gpu-02","node":`},
			"node twice, escaped":   {`"node":`, `"\u006eode":"gpu-02","node":`},
			"node twice, folded":    {`"node":`, `"Node":"gpu-02","node":`},
			"node folded":           {`"node":`, `"NODE":`},
			"node with another o":   {`"node":`, "\"n\u043ede\":"}, // Cyrillic
			"node missing":          {`"node":"gpu-01",`, ``},
			"node is null":          {`"gpu-01"`, `null`},
			"node is a number":      {`"gpu-01"`, `1`},
			"node is true":          {`"gpu-01"`, `true`},
			"node is a list":        {`"gpu-01"`, `["gpu-01"]`},
			"node is an object":     {`"gpu-01"`, `{"name":"gpu-01"}`},
			"17 levels":             {`"gpu-01"`, strings.Repeat(`[`, 16) + strings.Repeat(`]`, 16)},
			"10 000 levels":         {`"gpu-01"`, strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000)},
			"node is not UTF-8":     {`gpu-01`, "gpu-01\xff"},
			"node is a surrogate":   {`gpu-01`, `gpu-01\ud800`},
			"node has a raw NUL":    {`gpu-01`, "gpu-01\x00"},
			"data behind":           {good, good + `{}`},
			"a word behind":         {good, good + `null`},
			"a NUL behind":          {good, good + "\x00"},
			"a byte order mark":     {good, "\ufeff" + good},
			"a comment":             {`{`, `{/**/`},
			"a comma before the }":  {good, strings.TrimSuffix(good, `}`) + `,}`},
			"cut":                   {good, strings.TrimSuffix(good, `}`)},
			"single quotes":         {`"gpu-01"`, `'gpu-01'`},
			"two objects in a line": {good, good + "\n" + good},
		})
		payloads(kind, task.CheckFields, map[string][2]string{"no node": {`"gpu-01"`, `""`}})
	}

	// The keys of the site.
	for _, kind := range []string{aTask, aHead} {
		payloadType, good, _ := text(kind)
		by := func(seed byte) []byte { return dsse.Seal(payloadType, []byte(good), private(seed)) }
		named := func(id string) []byte {
			s := dsse.Sign(private(siteKey), payloadType, []byte(good))
			e := dsse.Envelope{Type: payloadType, Payload: []byte(good), Signatures: []dsse.Signature{{KeyID: id, Sig: s.Sig}}}
			return e.JSON()
		}
		add("of a stranger", kind, task.CheckKey, by(stranger))
		add("names a stranger", kind, task.CheckKey, named(dsse.KeyID(public(stranger))))
		add("names no key", kind, task.CheckKey, named(""))
		add("names a key as the trust document does", kind, task.CheckKey, named("site"))
		add("of the node itself", kind, task.CheckKey, by(nodeKey))
		add("no keys", kind, task.CheckKey, by(siteKey), func(c *task.Checker) { c.Keys = func() []task.Key { return nil } })
		add("a key that is none", kind, task.CheckKeyTime, named("ed25519:"), func(c *task.Checker) { c.Keys = func() []task.Key { return []task.Key{{}} } })
		add("key not valid yet", kind, task.CheckKeyTime, by(nextKey))
		add("key no longer valid", kind, task.CheckKeyTime, by(oldKey))
		add("key without times", kind, task.CheckKeyTime, by(bareKey))
		add("key expired by the newest head", kind, task.CheckKeyTime, by(siteKey), func(c *task.Checker) {
			c.Floor = func() time.Time { return now.Add(25 * time.Hour) }
		})
		add("a cut key", kind, task.CheckSignature, named(dsse.KeyID(public(siteKey)[:31])), func(c *task.Checker) {
			c.Keys = func() []task.Key {
				k := keys()[0]
				k.Public = k.Public[:31]
				return []task.Key{k}
			}
		})
		add("of a key for the other", kind, task.CheckKeyType, by(map[string]byte{aTask: headKey, aHead: taskKey}[kind]))
		for name, c := range map[string]func(*task.Checker){
			"another site's": func(c *task.Checker) { c.Site = "6f1d4c9e-0b1a-4f57-9a3e-2f1f6d0c7b12" },
			"site is folded": func(c *task.Checker) { c.Site = strings.ToUpper(site) },
			"site is unset":  func(c *task.Checker) { c.Site = "" },
		} {
			add(name, kind, task.CheckSite, by(siteKey), c)
		}
		for name, c := range map[string]func(*task.Checker){
			"another node's": func(c *task.Checker) { c.Node = "gpu-02" },
			"node is folded": func(c *task.Checker) { c.Node = "GPU-01" },
			"node is longer": func(c *task.Checker) { c.Node = "gpu-01 " },
			"node is unset":  func(c *task.Checker) { c.Node = "" },
		} {
			add(name, kind, task.CheckNode, by(siteKey), c)
		}
		payloads(kind, task.CheckNode, map[string][2]string{
			"wide digits":       {`gpu-01`, "gpu-\uff10\uff11"},
			"an invisible mark": {`gpu-01`, `gpu-01\u200b`},
			"an escaped NUL":    {`gpu-01`, `gpu-01\u0000`},
		})
		payloads(kind, task.CheckFields, map[string][2]string{
			"no site":        {`"site":"` + site + `"`, `"site":""`},
			"epoch 0":        {`"epoch":3`, `"epoch":0`},
			"epoch below 0":  {`"epoch":3`, `"epoch":-3`},
			"trust 0":        {`"trust":2`, `"trust":0`},
			"trust below 0":  {`"trust":2`, `"trust":-1`},
			"seq below 0":    {`"seq":17`, `"seq":-17`},
			"smallest epoch": {`"epoch":3`, `"epoch":-9223372036854775808`},
		})
		payloads(kind, task.CheckJSON, map[string][2]string{
			"seq missing":         {`"seq":17,`, ``},
			"seq is null":         {`"seq":17`, `"seq":null`},
			"seq with exponent":   {`"seq":17`, `"seq":1e3`},
			"seq with fraction":   {`"seq":17`, `"seq":17.0`},
			"seq is a text":       {`"seq":17`, `"seq":"17"`},
			"seq is -0":           {`"seq":17`, `"seq":-0`},
			"seq with zeros":      {`"seq":17`, `"seq":017`},
			"seq with a plus":     {`"seq":17`, `"seq":+17`},
			"seq in hex":          {`"seq":17`, `"seq":0x11`},
			"seq too large":       {`"seq":17`, `"seq":9223372036854775808`},
			"seq of 1000 digits":  {`"seq":17`, `"seq":` + strings.Repeat("9", 1000)},
			"seq is NaN":          {`"seq":17`, `"seq":NaN`},
			"seq in other digits": {`"seq":17`, "\"seq\":\uff11\uff17"},
			"site with a long s":  {`"site":`, "\"\u017fite\":"},
			"trust with a long s": {`"trust":`, "\"tru\u017ft\":"},
		})
	}

	// Tasks alone.
	add("of a key for updates", aTask, task.CheckKeyAction, sign(goodTask(), taskKey))
	for _, action := range []string{task.Delete, task.Fence} {
		t := goodTask()
		t.Action = action
		add(action+" of a key for updates", aTask, task.CheckKeyAction, sign(t, taskKey))
	}
	add("too large", aTask, task.CheckSize, dsse.Seal(task.Type, []byte(replaced(payload(goodTask()), `"Y2FuYXJ5"`, `"`+strings.Repeat("AAAA", 50_000)+`"`)), private(siteKey)))
	payloads(aTask, task.CheckFields, map[string][2]string{
		"no id":             {goodTask().ID, ``},
		"id in capitals":    {goodTask().ID, strings.ToUpper(goodTask().ID)},
		"id in braces":      {goodTask().ID, `{` + goodTask().ID + `}`},
		"id as a URN":       {goodTask().ID, `urn:uuid:` + goodTask().ID},
		"id of zeros":       {goodTask().ID, `00000000-0000-0000-0000-000000000000`},
		"no action":         {`"create"`, `""`},
		"unknown action":    {`"create"`, `"exec"`},
		"action in capital": {`"create"`, `"Create"`},
		"head as action":    {`"create"`, `"head"`},
		"no key":            {`"run-9/step-2"`, `""`},
		"seq 0":             {`"seq":17`, `"seq":0`},
		"no nonce":          {`"CQkJCQkJCQkJCQkJCQkJCQ=="`, `""`},
		"nonce of 15 bytes": {`"CQkJCQkJCQkJCQkJCQkJCQ=="`, `"CQkJCQkJCQkJCQkJCQkJ"`},
		"nonce of 17 bytes": {`"CQkJCQkJCQkJCQkJCQkJCQ=="`, `"CQkJCQkJCQkJCQkJCQkJCQk="`},
		"no params":         {`"Y2FuYXJ5"`, `""`},
		"not before is 0":   {`"2026-03-04T05:06:07Z"`, `"0001-01-01T00:00:00Z"`},
		"expires is 0":      {`"2026-03-04T05:11:07Z"`, `"0001-01-01T00:00:00Z"`},
	})
	payloads(aTask, task.CheckJSON, map[string][2]string{
		"key with a Kelvin sign":     {`"key":`, "\"\u212aey\":"},
		"params missing":             {`,"params":"Y2FuYXJ5"`, ``},
		"params are JSON":            {`"Y2FuYXJ5"`, `{"kind":"ovs.Bridge"}`},
		"params are null":            {`"Y2FuYXJ5"`, `null`},
		"params for URLs":            {`"Y2FuYXJ5"`, `"Y2F_YXJ5"`},
		"params with a break":        {`"Y2FuYXJ5"`, `"Y2Fu\nYXJ5"`},
		"params without padding":     {`"Y2FuYXJ5"`, `"Y2FuYXI"`},
		"params with spare bits":     {`"Y2FuYXJ5"`, `"Y2FuYXJ="`},
		"nonce as a list":            {`"CQkJCQkJCQkJCQkJCQkJCQ=="`, `[9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9]`},
		"nonce in hex":               {`"CQkJCQkJCQkJCQkJCQkJCQ=="`, `"0909090909090909090909090909-909"`},
		"expires in another zone":    {`05:11:07Z`, `07:11:07+02:00`},
		"expires with zone 0":        {`05:11:07Z`, `05:11:07+00:00`},
		"expires without a zone":     {`05:11:07Z`, `05:11:07`},
		"expires with a comma":       {`05:11:07Z`, `05:11:07,5Z`},
		"expires with a 0 behind":    {`05:11:07Z`, `05:11:07.50Z`},
		"expires in lower case":      {`2026-03-04T05:11:07Z`, `2026-03-04t05:11:07z`},
		"expires with a space":       {`2026-03-04T05:11:07Z`, `2026-03-04 05:11:07Z`},
		"expires at 24:00":           {`05:11:07Z`, `24:00:00Z`},
		"expires on a leap second":   {`05:11:07Z`, `05:11:60Z`},
		"expires on 30 February":     {`2026-03-04T05:11:07Z`, `2026-02-30T05:11:07Z`},
		"expires in the year 10000":  {`2026-03-04T05:11:07Z`, `10000-03-04T05:11:07Z`},
		"expires as a number":        {`"2026-03-04T05:11:07Z"`, `1772601067`},
		"expires with finer seconds": {`05:11:07Z`, `05:11:07.0000000001Z`},
	})
	fence := goodTask()
	fence.Action = task.Fence
	add("fence with params for URLs", aTask, task.CheckJSON, dsse.Seal(task.Type, []byte(replaced(payload(fence), `"Y2FuYXJ5"`, `"Y2F_YXJ5"`)), private(siteKey)))
	tasks(task.CheckNotBefore, map[string]func(*task.Task){
		"not valid yet":     func(t *task.Task) { t.NotBefore = now.Add(task.Skew + 1) },
		"far in the future": func(t *task.Task) { t.NotBefore = now.AddDate(7000, 0, 0); t.Expires = t.NotBefore.Add(time.Minute) },
	})
	tasks(task.CheckExpired, map[string]func(*task.Task){
		"expired":           func(t *task.Task) { t.NotBefore, t.Expires = now.Add(-task.MaxLife), now.Add(-task.Skew-1) },
		"expired for years": func(t *task.Task) { t.NotBefore = now.AddDate(-9, 0, 0); t.Expires = t.NotBefore.Add(1) },
	})
	add("the newest head beats a clock that is behind", aTask, task.CheckExpired, sign(goodTask(), siteKey), func(c *task.Checker) {
		c.Floor = func() time.Time { return now.Add(5*time.Minute + task.Skew + 1) }
	})
	add("the clock is ahead of the newest head", aTask, task.CheckExpired, sign(goodTask(), siteKey), func(c *task.Checker) {
		c.Now = func() time.Time { return now.Add(5*time.Minute + task.Skew + 1) }
		c.Floor = func() time.Time { return now }
	})
	payloads(aTask, task.CheckLife, map[string][2]string{
		"too long a life":       {`05:11:07Z`, `05:16:07.000000001Z`},
		"a life of 8000 years":  {`"2026-03-04T05:11:07Z"`, `"9999-12-31T23:59:59Z"`},
		"no life":               {`05:11:07Z`, `05:06:07Z`},
		"expires before it may": {`05:11:07Z`, `05:06:06Z`},
	})

	// Heads alone.
	heads(task.CheckNotBefore, map[string]func(*task.Head){
		"from beyond": func(h *task.Head) { h.Now = now.Add(task.Skew + 1) },
		"far future":  func(h *task.Head) { h.Now = now.AddDate(7000, 0, 0) },
	})
	heads(task.CheckExpired, map[string]func(*task.Head){
		"stale":   func(h *task.Head) { h.Now = now.Add(-task.HeadLife - task.Skew - 1) },
		"ancient": func(h *task.Head) { h.Now = now.AddDate(-1000, 0, 0) },
	})
	add("older than the newest head", aHead, task.CheckExpired, sign(goodHead(), siteKey), func(c *task.Checker) {
		c.Floor = func() time.Time { return now.Add(task.HeadLife + task.Skew + 1) }
	})
	payloads(aHead, task.CheckFields, map[string][2]string{"now is 0": {`"2026-03-04T05:06:07Z"`, `"0001-01-01T00:00:00Z"`}})
	payloads(aHead, task.CheckJSON, map[string][2]string{
		"now in another zone": {`05:06:07Z`, `06:06:07+01:00`},
		"now missing":         {`"now":"2026-03-04T05:06:07Z",`, ``},
	})

	// Results alone.
	result := func(name string, want task.Check, seed byte, f func(*task.Result)) {
		r := goodResult()
		f(r)
		add(name, aResult, want, sign(r, seed))
	}
	result("of another node's key", task.CheckSignature, stranger, func(r *task.Result) {})
	result("of the site's key", task.CheckSignature, siteKey, func(r *task.Result) {})
	result("another node's", task.CheckNode, nodeKey, func(r *task.Result) { r.Node = "gpu-02" })
	result("for another task", task.CheckTask, nodeKey, func(r *task.Result) {
		other := goodTask()
		other.Seq++
		r.Task = digestOf(other)
	})
	result("for a task that never was", task.CheckTask, nodeKey, func(r *task.Result) { r.Task = strings.Repeat("0", 64) })
	digest := digestOf(goodTask())
	payloads(aResult, task.CheckFields, map[string][2]string{
		"for no task":        {digest, ``},
		"for half a digest":  {digest, digest[:32]},
		"digest in capitals": {digest, strings.ToUpper(digest)},
		"digest is no hex":   {digest, strings.Repeat("g", 64)},
		"at is 0":            {`"2026-03-04T05:06:07Z"`, `"0001-01-01T00:00:00Z"`},
	})
	payloads(aResult, task.CheckJSON, map[string][2]string{
		"answer missing":     {`,"answer":"Y2FuYXJ5"`, ``},
		"answer is JSON":     {`"Y2FuYXJ5"`, `{}`},
		"answer with breaks": {`"Y2FuYXJ5"`, `"Y2Fu\r\nYXJ5"`},
	})
	return vs
})

// Every vector is refused by the check that is for it, and every check is for some vector. An error says nothing of the content.
func TestVectors(t *testing.T) {
	reached := map[string]map[task.Check]bool{aTask: {}, aHead: {}, aResult: {}}
	for _, v := range vectors() {
		err := v.open(nil)
		refused, ok := errors.AsType[*task.RefusedError](err)
		if !ok || refused.Check != v.want {
			t.Errorf("%s: %v, want %s", v.name, err, v.want)
			continue
		}
		if strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "Y2FuYXJ5") || refused.Why == "" || len(err.Error()) > 300 {
			t.Errorf("%s: %v", v.name, err)
		}
		reached[v.kind][v.want] = true
	}
	for kind, seen := range reached {
		for _, c := range checksOf(t, kind) {
			if !seen[c] {
				t.Errorf("no vector of a %s is for %s", kind, c)
			}
		}
	}
	if n := len(vectors()); n < 60 {
		t.Errorf("only %d vectors", n)
	}
}

// The checks run in the order of rule T2.
func TestOrder(t *testing.T) {
	only := func(without ...task.Check) []task.Check {
		return slices.DeleteFunc(slices.Clone(order), func(c task.Check) bool { return slices.Contains(without, c) })
	}
	for kind, want := range map[string][]task.Check{
		aTask: only(task.CheckTask),
		aHead: only(task.CheckKeyAction, task.CheckTask, task.CheckLife),
		aResult: only(task.CheckKey, task.CheckKeyTime, task.CheckKeyType, task.CheckKeyAction, task.CheckSite, task.CheckNotBefore,
			task.CheckExpired, task.CheckLife),
	} {
		if got := checksOf(t, kind); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}

// Without one of the checks, something is accepted that must not be: no check is there in vain. Those that the later ones need in order
// to have something to check cannot let anything pass alone; the tests below are for them.
func TestEveryCheckIsNeeded(t *testing.T) {
	alone := map[string][]task.Check{
		aTask:   {task.CheckEnvelope, task.CheckKey, task.CheckKeyType},
		aHead:   {task.CheckEnvelope, task.CheckKey},
		aResult: {task.CheckEnvelope},
	}
	accepted := map[string]map[task.Check]bool{aTask: {}, aHead: {}, aResult: {}}
	for _, v := range vectors() {
		err := v.open(skipping(v.want))
		if err == nil {
			accepted[v.kind][v.want] = true
			continue
		}
		// What refuses it now comes later: no earlier check stands in for the one that is missing.
		refused, ok := errors.AsType[*task.RefusedError](err)
		if !ok || slices.Index(order, refused.Check) <= slices.Index(order, v.want) {
			t.Errorf("%s: without %s: %v", v.name, v.want, err)
		}
	}
	for kind, seen := range accepted {
		for _, c := range checksOf(t, kind) {
			if want := !slices.Contains(alone[kind], c); seen[c] != want {
				t.Errorf("%s: without %s something is accepted: %v, want %v", kind, c, seen[c], want)
			}
		}
	}
}

// A task of a stranger is kept out by three checks, and by each of them: the stranger's key is unknown, so that it is never valid and
// matches nothing. A key for heads is kept from tasks by two: early, before the payload is read, and for its action.
func TestKeysAreCheckedInDepth(t *testing.T) {
	head := vector{kind: aTask, envelope: sign(goodTask(), headKey)}
	unknown := vector{kind: aTask, envelope: sign(goodTask(), stranger)}
	for _, c := range []struct {
		v      vector
		checks []task.Check
	}{
		{head, []task.Check{task.CheckKeyType, task.CheckKeyAction}},
		{unknown, []task.Check{task.CheckKey, task.CheckKeyTime, task.CheckSignature}},
	} {
		if err := c.v.open(skipping(c.checks...)); err != nil {
			t.Errorf("without %v: %v", c.checks, err)
		}
		for i := range c.checks {
			if err := c.v.open(skipping(slices.Delete(slices.Clone(c.checks), i, i+1)...)); err == nil {
				t.Errorf("%s alone lets it pass", c.checks[i])
			}
		}
	}
}

// The strictness of the envelope and of the payload is needed: a common reader of JSON accepts these, and some of them mean something
// else to it than to the next reader.
func TestStrictnessIsNeeded(t *testing.T) {
	lax := map[task.Check]int{}
	for _, v := range vectors() {
		if v.kind != aTask || v.want != task.CheckEnvelope && v.want != task.CheckJSON {
			continue
		}
		var e struct {
			PayloadType string
			Payload     []byte
			Signatures  []struct{ Sig []byte }
		}
		in := json.NewDecoder(strings.NewReader(string(v.envelope)))
		if in.Decode(&e) != nil || len(e.Signatures) != 1 || !ed25519.Verify(public(siteKey), dsse.PAE(e.PayloadType, e.Payload), e.Signatures[0].Sig) {
			continue
		}
		var got task.Task
		in = json.NewDecoder(strings.NewReader(string(e.Payload)))
		if in.Decode(&got) == nil && got.Site == site && got.Node == node && got.Seq > 0 {
			lax[v.want]++
		}
	}
	if lax[task.CheckEnvelope] < 5 || lax[task.CheckJSON] < 10 {
		t.Errorf("a lax reader accepts only %v", lax)
	}
}

package trust_test

import (
	"errors"
	"testing"
	"time"

	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// A banned node gets nothing, and everything again when the ban ends.
func TestBan(t *testing.T) {
	b := newBed(t)
	id := b.node("gpu-01")
	token := b.token("gpu-01")
	if err := trust.Ban(t.Context(), b.store, "gpu-01", "stolen", "ann@host"); err != nil {
		t.Fatal(err)
	}
	var banned *trust.BannedError
	if _, err := b.Claim(t.Context(), b.store, token, request(t, newKey(), "")); !errors.As(err, &banned) || banned.Reason != "stolen" {
		t.Errorf("claim: %v", err)
	}
	if _, err := b.Renew(t.Context(), b.store, id.Certificate(), request(t, newKey(), "")); !errors.As(err, &banned) {
		t.Errorf("renew: %v", err)
	}
	if nodes, err := trust.Nodes(t.Context(), b.store); err != nil || len(nodes) != 1 || nodes[0].Status() != state.NodeBanned {
		t.Errorf("%+v, %v", nodes, err)
	}
	if err := trust.Unban(t.Context(), b.store, "gpu-01", "found", "ann@host"); err != nil {
		t.Fatal(err)
	}
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Errorf("%q, %v", node, err)
	}
	if err := trust.Ban(t.Context(), b.store, "gpu-77", "stolen", "ann@host"); !errors.Is(err, trust.ErrUnknownNode) {
		t.Error(err)
	}
	if err := trust.Ban(t.Context(), b.store, "gpu-01", "", "ann@host"); err == nil {
		t.Error("a ban without a reason")
	}
	audits, err := b.store.Audits(t.Context())
	if err != nil || len(audits) != 4 {
		t.Errorf("%+v, %v", audits, err)
	}
	if _, err := b.Claim(t.Context(), b.store, token, request(t, newKey(), "")); !errors.Is(err, trust.ErrTokenExpired) {
		t.Errorf("a token from before the ban: %v", err)
	}
}

// A machine that was stolen is replaced under its name without being let in again.
func TestReplaceBanned(t *testing.T) {
	b := newBed(t)
	thief := b.node("gpu-01")
	if err := trust.Ban(t.Context(), b.store, "gpu-01", "stolen", "ann@host"); err != nil {
		t.Fatal(err)
	}
	token := b.token("gpu-01")
	if _, err := who(t, b.address, thief.TLS()); err == nil {
		t.Error("a token lets the thief in")
	}
	chain, err := b.Claim(t.Context(), b.store, token, request(t, newKey(), ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.admission.Check("gpu-01", parse(t, chain).SerialNumber); err != nil {
		t.Error(err)
	}
	if _, err := who(t, b.address, thief.TLS()); err == nil {
		t.Error("the thief is let in again")
	}
	if _, err := b.Renew(t.Context(), b.store, thief.Certificate(), request(t, newKey(), "")); !errors.Is(err, trust.ErrSuperseded) {
		t.Errorf("the thief renews: %v", err)
	}
	audits, err := b.store.Audits(t.Context())
	if err != nil || audits[len(audits)-1].Action != "unban" {
		t.Errorf("%+v, %v", audits, err)
	}
}

// That a token was used by somebody else is learnt even when it has expired meanwhile.
func TestContestedLate(t *testing.T) {
	b := newBed(t)
	token := b.token("gpu-01")
	if _, err := b.Claim(t.Context(), b.store, token, request(t, newKey(), "")); err != nil {
		t.Fatal(err)
	}
	b.clock.add(16 * time.Minute)
	var contested *trust.ContestedError
	if _, err := b.Claim(t.Context(), b.store, token, request(t, newKey(), "")); !errors.As(err, &contested) {
		t.Error(err)
	}
	if n := b.stored("gpu-01"); n.Status() != state.NodeContested {
		t.Errorf("%+v", n)
	}
}

// After a restore from a backup, a new token replaces any certificate of the node; tokens of the backup are void.
func TestTokensAfterRestore(t *testing.T) {
	b := newBed(t)
	used := b.token("gpu-01")
	backup := b.stored("gpu-01")
	chain, err := b.Claim(t.Context(), b.store, used, request(t, newKey(), ""))
	if err != nil {
		t.Fatal(err)
	}
	old := parse(t, chain)
	for range 2 {
		b.clock.add(time.Minute)
		if chain, err = b.Renew(t.Context(), b.store, old, request(t, newKey(), "")); err != nil {
			t.Fatal(err)
		}
		old = parse(t, chain)
	}
	backup.Revision = b.stored("gpu-01").Revision
	if err := b.store.SetNode(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	if err := trust.VoidTokens(t.Context(), b.store); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Claim(t.Context(), b.store, used, request(t, newKey(), "")); !errors.Is(err, trust.ErrTokenUnknown) {
		t.Errorf("a token that may have been used: %v", err)
	}
	if chain, err = b.Claim(t.Context(), b.store, b.token("gpu-01"), request(t, newKey(), "")); err != nil {
		t.Fatal(err)
	}
	if err := b.admission.Check("gpu-01", old.SerialNumber); !errors.Is(err, trust.ErrSuperseded) {
		t.Errorf("the old machine: %v", err)
	}
	if _, err := b.Renew(t.Context(), b.store, old, request(t, newKey(), "")); !errors.Is(err, trust.ErrSuperseded) {
		t.Errorf("the old machine renews: %v", err)
	}
	if err := b.admission.Check("gpu-01", parse(t, chain).SerialNumber); err != nil {
		t.Error(err)
	}
}

// Who has a token and got a certificate that is not valid, because the clock of the site was wrong, gets another one with it.
func TestClaimAgainLater(t *testing.T) {
	b := newBed(t)
	b.clock.add(3 * 24 * time.Hour)
	key := newKey()
	token := b.token("gpu-01")
	first, err := b.Claim(t.Context(), b.store, token, request(t, key, ""))
	if err != nil {
		t.Fatal(err)
	}
	b.clock.add(-3 * 24 * time.Hour)
	chain, err := b.Claim(t.Context(), b.store, token, request(t, key, ""))
	if err != nil {
		t.Fatal(err)
	}
	now, cert := b.clock.now(), parse(t, chain)
	if now.Before(cert.NotBefore) || !now.Before(cert.NotAfter) {
		t.Errorf("from %v to %v, and it is %v", cert.NotBefore, cert.NotAfter, now)
	}
	if err := b.admission.Check("gpu-01", cert.SerialNumber); err != nil {
		t.Error(err)
	}
	if err := b.admission.Check("gpu-01", parse(t, first).SerialNumber); !errors.Is(err, trust.ErrSuperseded) {
		t.Errorf("the first: %v", err)
	}
	if b.admission.Replaced("gpu-01", parse(t, first).SerialNumber) { // nothing is watched: it does not ask
		t.Error("it is known to be replaced")
	}
}

package command

import (
	"os/user"
	"strconv"
	"strings"
	"testing"
)

// Nobody becomes another person by an environment variable.
func TestWhoIsNotChosen(t *testing.T) {
	was := who()
	t.Setenv("USER", "mallory")
	if now := who(); now != was {
		t.Errorf("%s became %s", was, now)
	}
	root, err := user.LookupId("0")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		u    user.User
		env  string
		want bool
	}{
		{"the system does not know the user", user.User{Uid: "4242", Username: "mallory"}, "mallory", true},
		{"it is the name of another user", user.User{Uid: "4242", Username: root.Username}, root.Username, true},
		{"the system knows the user", user.User{Uid: "0", Username: root.Username}, root.Username, false},
		{"the system knows more than the environment", user.User{Uid: "4242", Username: "ada", Name: "Ada Lovelace"}, "ada", false},
		{"the environment says something else", user.User{Uid: "4242", Username: "ada"}, "mallory", false},
	} {
		t.Setenv("USER", c.env)
		if got := invented(&c.u); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if _, err := strconv.Atoi(strings.Split(was, "@")[0]); err == nil {
		t.Errorf("%s is a number: it could be a name", was)
	}
}

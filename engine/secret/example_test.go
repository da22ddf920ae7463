package secret_test

import (
	"bytes"
	"fmt"
	"log"

	"converge.dev/converge/engine/secret"
	"converge.dev/converge/schema"
)

// A document names the place of a password. The plan holds its digest, only the provider sees it, and no text shows it.
func Example() {
	account := &schema.Kind{Name: "lab.account", Fields: []schema.Field{
		{Name: "login", Type: schema.String},
		{Name: "password", Type: schema.Struct, Secret: true, Fields: []schema.Field{{Name: "from", Type: schema.String}}},
	}}
	environment := map[string]string{"DB_PASSWORD": "correct horse"}
	vault := secret.New(
		func() ([]byte, error) { return bytes.Repeat([]byte{7}, secret.KeySize), nil }, // in practice: state.Store.SecretKey
		secret.Options{Source: secret.Source{Lookup: func(name string) (string, bool) {
			value, ok := environment[name]
			return value, ok
		}}})

	document := schema.Object{"login": "web", "password": map[string]any{"from": "env:DB_PASSWORD"}}
	sealed, err := vault.Seal(account, document)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("planned:", sealed["password"])

	call, err := vault.Open(account, sealed)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent:", call["password"])
	fmt.Println("logged:", vault.ScrubText(fmt.Sprint("login refused: ", call)))

	environment["DB_PASSWORD"] = "battery staple"
	_, err = vault.Open(account, sealed)
	fmt.Println(err)
	// Output:
	// planned: map[digest:hmac-sha256:42fbbd77233002d413c29173fb07ca2d726bad80194f5a94bde1c3e451e4c495 from:env:DB_PASSWORD]
	// sent: correct horse
	// logged: login refused: map[login:web password:(secret)]
	// password: env:DB_PASSWORD: the secret changed since the plan was made
}

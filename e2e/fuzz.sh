#!/bin/sh
# Fuzzes every decoder of the module.
#
#	e2e/fuzz.sh        tries the inputs that are the same in every run (package fuzzed)
#	e2e/fuzz.sh 10m    looks for others, for a while each, guided by coverage
#
# It finds the Fuzz functions of all packages that have a fuzz_test.go, and prints one line for each. It ends with 1 when one
# found something. What the search found is then in testdata/fuzz of its package, and stays a test for ever.
set -eu
cd "$(dirname "$0")/.."

# report writes the line of the table of figures: FIGURES FAILED
report() {
	[ -z "${CONVERGE_TORTURE_REPORT:-}" ] || printf '{"test":"M","name":"fuzz","figures":"%s, %s failed","failed":%s}\n' "$1" "$2" "$([ "$2" -eq 0 ] && echo false || echo true)" >>"$CONVERGE_TORTURE_REPORT"
}

folders() {
	git ls-files --cached --others --exclude-standard '*fuzz_test.go' | xargs -n 1 dirname | sort -u
}

if [ $# -eq 0 ]; then
	out=$(mktemp)
	trap 'rm -f "$out"' EXIT
	# shellcheck disable=SC2046 # a list of packages
	go test -vet=off -count=1 -timeout 30m -run '^Fuzz' -v $(folders | sed 's|^|./|') >"$out" 2>&1 || true
	awk '
		/^=== RUN +Fuzz[A-Za-z]+$/ { name = $3 }
		/^=== RUN +Fuzz[A-Za-z]+\// { n[name]++ }
		/^(---|panic:|FAIL)/ && !/^--- PASS/ { failed = 1 }
		/^--- (PASS|FAIL): Fuzz/ { lines[++ended] = sprintf("%-9s", $2 == "PASS:" ? "ok" : "FAILED"); of[ended] = sprintf("%-18s %6d inputs", $3, n[$3]); red += $2 != "PASS:"; inputs += n[$3]; n[$3] = 0 }
		/^(ok|FAIL)[ \t]/ { sub("^[^/]*/converge/", "", $2); while (told < ended) { told++; print lines[told], sprintf("%-22s", $2), of[told] } }
		END { print ended + 0, inputs + 0, red + (failed && !red) >"/dev/stderr" }' "$out" 2>"$out.sum"
	read -r targets inputs failed <"$out.sum"
	rm -f "$out.sum"
	[ "$failed" -eq 0 ] || grep -v '^ *\(=== RUN\|--- PASS\|PASS\|ok \)' "$out" | head -100
	report "$targets decoders, $inputs inputs" "$failed"
	echo "$targets targets, $inputs inputs, $failed failed"
	[ "$targets" -ge 10 ] || { echo "want 10 targets at least"; exit 1; }
	[ "$failed" -eq 0 ]
	exit
fi
time=$1
cache=$(go env GOCACHE)/fuzz

# fuzz FOLDER TARGET: gives one target its time, and leaves its line, and what it found, in its log.
fuzz() {
	name=$(echo "$1" | tr / _)
	out=$logs/$name.$2
	status=ok
	(cd "$1" && "$logs/$name.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" -test.fuzzminimizetime 2s -test.parallel 1 \
		-test.fuzzcachedir "$cache/converge.dev/converge/$1") >"$out.text" 2>&1 || status=FAILED
	# A worker that is busy when the time is over makes go test say FAIL, with this and no input (golang/go issue 75804).
	if [ "$status" = FAILED ] && [ "$(grep -v '^fuzz: elapsed' "$out.text" | sed -n '2s/^ *//p')" = "context deadline exceeded" ] && ! grep -q 'Failing input' "$out.text"; then
		status=ok
	fi
	last=$(grep 'execs:' "$out.text" | tail -1)
	execs=$(printf '%s\n' "$last" | sed -n 's/.*execs: \([0-9]*\).*/\1/p')
	found=$(printf '%s\n' "$last" | sed -n 's/.*total: \([0-9]*\).*/\1/p')
	if [ "$status" = ok ] && [ "${execs:-0}" -eq 0 ]; then
		status='FAILED (nothing was tried)'
	fi
	printf '%-9s %-22s %-18s %10s executions, %s inputs in the corpus\n' "$status" "$1" "$2" "${execs:-0}" "${found:-0}" >"$out.line"
	if [ "$status" != ok ]; then
		grep -v '^fuzz: elapsed' "$out.text" | head -40 >>"$out.line"
	fi
	cat "$out.line"
}

if [ $# -eq 3 ]; then # called by itself, for one target
	fuzz "$2" "$3"
	exit
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs

# build builds each package while those before it are tried, and says which targets are in it.
build() {
	for folder in $(folders); do
		name=$(echo "$folder" | tr / _)
		nice -n 19 go test -c -fuzz . -o "$logs/$name.test" "./$folder" || touch "$logs/unbuilt"
		(cd "$folder" && "$logs/$name.test" -test.list '^Fuzz') | sed -n "s|^Fuzz|$folder &|p"
	done | tee "$logs/targets"
}

# Four at a time, as soon as they are built: most of what a target does, it does alone, and much of that is waiting for its
# worker.
build | xargs -P 4 -L 1 e2e/fuzz.sh "$time"
targets=$(wc -l <"$logs/targets")
failed=$(cat "$logs"/*.line | grep -c '^FAILED' || true)
echo "$targets targets, $failed failed"
report "$targets targets × $time" "$failed"
[ ! -e "$logs/unbuilt" ] && [ "$(ls "$logs"/*.line | wc -l)" -eq "$targets" ] || { echo "of some targets nothing came"; exit 1; }
[ "$targets" -ge 10 ] || { echo "want 10 targets at least"; exit 1; }
[ "$failed" -eq 0 ]

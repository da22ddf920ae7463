#!/bin/sh
# Seeds one safety bug after the other, as an overlay of the tree, and runs the test that must catch it; two at a time,
# because most of what a test of one package costs, the linker does alone.
#
#	e2e/mutants/run.sh [NAME...]
#	e2e/mutants/run.sh -n [NAME...]	only say which patches do not apply
#
# Each NAME.patch says in its head which rule of docs/reliability.md it breaks, how, and which test must turn red. A patch that does
# not apply or does not compile, and a test that stays green, end it with 1.
set -u
cd "$(dirname "$0")/../.."
here=e2e/mutants
dry=
[ "${1:-}" != -n ] || { dry=yes; shift; }
names=${*:-$(cd $here && ls *.patch | sed 's/\.patch$//')}
if [ -n "$dry" ]; then
	for name in $names; do
		patch -p1 -s -f --dry-run <"$here/$name.patch" >/dev/null || { echo "$here/$name.patch does not apply"; dry=no; }
	done
	[ $dry = yes ]
	exit
fi
export CONVERGE_TORTURE="${CONVERGE_TORTURE:-push}" CONVERGE_REAL=1
report=${CONVERGE_TORTURE_REPORT:-}
unset CONVERGE_TORTURE_REPORT # what a mutant reaches is no figure
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# try NAME: seeds a bug, and notes in $work/caught or $work/lost what came of it.
try() {
	tree=$work/$1.tree out=$work/$1.out patch=$here/$1.patch
	rule=$(sed -n 's/^# rule: //p' "$patch")
	test=$(sed -n 's/^# test: //p' "$patch")
	files=$(sed -n 's|^+++ b/||p' "$patch")
	mkdir "$tree"
	cp --parents -t "$tree" $files
	for file in $files; do
		printf '"%s":"%s"\n' "$PWD/$file" "$tree/$file"
	done | paste -s -d , | sed 's/.*/{"Replace":{&}}/' >"$tree/overlay.json"
	if ! patch -p1 -s -f -d "$tree" <"$patch"; then
		echo "✗ $1: it does not apply"
		echo "$1" >>"$work/lost"
	elif eval go test -overlay "$tree/overlay.json" -count=1 -failfast -vet=off -timeout 2m $test >"$out" 2>&1; then
		echo "✗ $1 ($rule): SURVIVED $test"
		echo "$1" >>"$work/lost"
	elif grep -q 'build failed\]' "$out"; then
		echo "✗ $1: it does not compile"
		sed 's/^/    /' "$out" | head -5
		echo "$1" >>"$work/lost"
	else
		echo "✓ $1 ($rule): $(grep -o -E -m1 -e '--- FAIL: [A-Za-z0-9_/#-]+' -e 'panic: .*' "$out" | sed 's/--- FAIL: //' | head -1)"
		echo "$1" >>"$work/caught"
	fi
}

touch "$work/caught" "$work/lost"
for turn in 0 1; do
	(
		n=0
		for name in $names; do
			[ $((n % 2)) -ne $turn ] || try "$name"
			n=$((n + 1))
		done
	) &
done
wait
caught=$(wc -l <"$work/caught") lost=$(tr '\n' ' ' <"$work/lost")
all=$(echo $names | wc -w)
echo "$caught of $all seeded bugs were caught"
failed=false
[ "$caught" -eq "$all" ] || failed=true
if [ -n "$report" ]; then
	printf '{"test":"P","name":"mutants","figures":"%s of %s seeded bugs caught","failed":%s}\n' "$caught" "$all" $failed >>"$report"
fi
[ $failed = false ] || { echo "not caught: $lost"; exit 1; }

#!/bin/sh
# Seeds one safety bug after the other into copies of the tree and runs the test that must catch it; two copies at a time,
# because most of what a test of one package costs, the linker does alone.
#
#	e2e/mutants/run.sh [NAME...]
#
# Each NAME.patch says in its head which rule of docs/reliability.md it breaks, how, and which test must turn red. A patch that does
# not apply or does not compile, and a test that stays green, end it with 1.
set -u
cd "$(dirname "$0")/../.."
export CONVERGE_TORTURE="${CONVERGE_TORTURE:-push}" CONVERGE_REAL=1
report=${CONVERGE_TORTURE_REPORT:-}
unset CONVERGE_TORTURE_REPORT # what a mutant reaches is no figure
here=e2e/mutants
names=${*:-$(cd $here && ls *.patch | sed 's/\.patch$//')}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# plant COPY: makes a copy of the tree, or mends it.
plant() {
	mkdir -p "$work/$1"
	git ls-files -z -c -o --exclude-standard | xargs -0 cp --parents -t "$work/$1"
}

# try COPY NAME: seeds a bug, and notes in $work/caught or $work/lost what came of it.
try() {
	tree=$work/$1 out=$work/out.$1 patch=$PWD/$here/$2.patch
	rule=$(sed -n 's/^# rule: //p' "$patch")
	test=$(sed -n 's/^# test: //p' "$patch")
	if ! (cd "$tree" && patch -p1 -s -f <"$patch"); then
		echo "✗ $2: it does not apply"
		echo "$2" >>"$work/lost"
		plant "$1"
		return
	fi
	if (cd "$tree" && eval go test -count=1 -failfast -vet=off -timeout 2m $test >"$out" 2>&1); then
		echo "✗ $2 ($rule): SURVIVED $test"
		echo "$2" >>"$work/lost"
	elif grep -q 'build failed\]' "$out"; then
		echo "✗ $2: it does not compile"
		sed 's/^/    /' "$out" | head -5
		echo "$2" >>"$work/lost"
	else
		echo "✓ $2 ($rule): $(grep -o -E -m1 -e '--- FAIL: [A-Za-z0-9_/#-]+' -e 'panic: .*' "$out" | sed 's/--- FAIL: //' | head -1)"
		echo "$2" >>"$work/caught"
	fi
	(cd "$tree" && patch -p1 -R -s -f <"$patch")
}

touch "$work/caught" "$work/lost"
for copy in 0 1; do
	plant $copy
	(
		turn=0
		for name in $names; do
			[ $((turn % 2)) -ne $copy ] || try $copy "$name"
			turn=$((turn + 1))
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

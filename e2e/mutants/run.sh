#!/bin/sh
# Seeds one safety bug after the other into a copy of the tree and runs the test that must catch it.
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
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT INT TERM
git ls-files -z -c -o --exclude-standard | xargs -0 cp --parents -t "$tree"
caught=0 all=0 lost=""
for name in $names; do
	all=$((all + 1))
	patch=$PWD/$here/$name.patch
	rule=$(sed -n 's/^# rule: //p' "$patch")
	test=$(sed -n 's/^# test: //p' "$patch")
	if ! (cd "$tree" && patch -p1 -s -f <"$patch"); then
		echo "✗ $name: it does not apply"
		lost="$lost $name"
		git ls-files -z -c -o --exclude-standard | xargs -0 cp --parents -t "$tree"
		continue
	fi
	if (cd "$tree" && eval go test -count=1 -failfast -timeout 2m $test >"$tree/out" 2>&1); then
		echo "✗ $name ($rule): SURVIVED $test"
		lost="$lost $name"
	elif grep -q 'build failed\]' "$tree/out"; then
		echo "✗ $name: it does not compile"
		sed 's/^/    /' "$tree/out" | head -5
		lost="$lost $name"
	else
		caught=$((caught + 1))
		echo "✓ $name ($rule): $(grep -o -E -m1 -e '--- FAIL: [A-Za-z0-9_/#-]+' -e 'panic: .*' "$tree/out" | sed 's/--- FAIL: //' | head -1)"
	fi
	(cd "$tree" && patch -p1 -R -s -f <"$patch")
done
echo "$caught of $all seeded bugs were caught"
if [ -n "$report" ]; then
	failed=false
	[ -z "$lost" ] || failed=true
	printf '{"test":"P","name":"mutants","figures":"%s of %s seeded bugs caught","failed":%s}\n' $caught $all $failed >>"$report"
fi
[ -z "$lost" ] || { echo "not caught:$lost"; exit 1; }

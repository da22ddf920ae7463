#!/bin/sh
# The tests of docs/reliability.md at the promised figures: push (what CI runs), or nightly.
set -u
cd "$(dirname "$0")/.."
export CONVERGE_TORTURE="${1:-push}" CONVERGE_REAL=1
case $CONVERGE_TORTURE in
push) export RAPID_SEED="${RAPID_SEED:-1}" ;; # random worlds are the same in every run: chance judges no push
nightly) ;;
*) echo "usage: e2e/torture.sh push|nightly" >&2; exit 2 ;;
esac
CONVERGE_TORTURE_REPORT=$(mktemp)
export CONVERGE_TORTURE_REPORT
trap 'rm -f "$CONVERGE_TORTURE_REPORT"' EXIT
status=0
begun=$(date +%s)
step() {
	echo "── $1 ($(($(date +%s) - begun)) s)"
	shift
	"$@" || status=1
}
packages=$(git grep -l '^func TestTorture' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
longest="./e2e/hostile ./e2e/crash" # first, so that the rest runs beside them, and not they alone in the end
step "tests" go test -vet=off -count=1 -p 3 -timeout 8h -run '^TestTorture' $longest $packages
step "decoders, on the same inputs in every run" e2e/fuzz.sh
if [ "$CONVERGE_TORTURE" = nightly ]; then # what chance finds judges no push
	step "decoders, fuzzed for 10m each" e2e/fuzz.sh 10m
	step "libvirt and Open vSwitch, with the race detector" \
		go test -tags libvirt_dlopen -vet=off -count=1 -race -timeout 1h -run '^TestReal$|^TestLaws$/^real$' ./providers/libvirt ./providers/ovs
	step "each step refused, each call without a reply, and a kill at each moment, with processes" \
		go test -vet=off -count=1 -timeout 2h -run '^Test(Refused|LostReply|Killed)' ./e2e
	step "the program conftest" go test -C e2e/outside -count=1 -timeout 1h .
fi
part=0/1
if [ "$CONVERGE_TORTURE" = push ]; then # the next commit tries others
	part=$(($(git rev-list --count HEAD) % 12))/12
fi
step "seeded bugs" go run ./e2e/mutants -part=$part
echo "── figures ($(($(date +%s) - begun)) s)"
go run ./internal/torture/table "$CONVERGE_TORTURE_REPORT" || status=1
exit $status

#!/bin/sh
# A site document becomes a site, is changed behind converge's back, is healed, and a change that fails is undone.
# Everything happens in a directory of its own, against a simulated Carbide site over mutual TLS.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
converge="$here/bin/converge"
export PATH="$here/bin:$PATH" NO_COLOR="${NO_COLOR-}"
[ -n "$NO_COLOR" ] || unset NO_COLOR

finish() {
	status=$?
	for process in ${simulator-} ${agents-}; do
		{ kill "$process" 2>/dev/null && wait "$process" 2>/dev/null; } || true
	done
	rm -rf "$dir"
	[ $status = 0 ] || echo "demo: stopped with exit status $status" >&2
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

# say TEXT...: opens a chapter. A person reads the one before in peace: Enter goes on; nobody else is kept waiting.
chapters=0
say() {
	if [ -t 0 ] && [ -t 1 ] && [ $chapters -gt 0 ]; then
		printf '\n[Enter]'
		read -r _ || exit 130
	fi
	chapters=$((chapters + 1))
	text=$(printf '# %s\n' "$*" | fold -s -w 78 | sed -e '2,$s/^/# /' -e 's/ *$//')
	if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$text"; else printf '\n%s\n' "$text"; fi
}

# run [-STATUS] COMMAND...: shows the command, runs it, and stops the demo unless it ends with STATUS (0).
run() {
	want=0
	case $1 in -[0-9]*) want=${1#-}; shift ;; esac
	printf '$ %s\n' "$*" | fold -s -w 80
	got=0
	"$@" || got=$?
	[ "$got" = 0 ] || echo "(exit status $got)"
	[ "$got" = "$want" ] || { echo "demo: that should have ended with status $want" >&2; exit 1; }
}

# quietly COMMAND...: shows the command and not its output.
quietly() {
	printf '$ %s\n' "$*" | fold -s -w 80
	"$@" >/dev/null
}

# await COMMAND...: shows the command, and runs it until it ends with 0, for at most a minute.
await() {
	printf '$ %s\n' "$*" | fold -s -w 80
	tries=0
	until said=$("$@" 2>/dev/null); do
		tries=$((tries + 1))
		[ $tries -lt 300 ] || { echo "demo: that should have ended with status 0 by now" >&2; exit 1; }
		sleep 0.2
	done
	echo "$said"
}

cp -R "$here/examples/quickstart" "$dir/site"
cd "$dir"

say "A simulated Carbide site, over mutual TLS, in a process of its own."
mkfifo said
converge dev carbide -listen=127.0.0.1:0 -fast -machines=8 >converge.yaml 2>said &
simulator=$!
exec 3<said
while read -r line <&3; do # it says when it listens
	case $line in Press*) break ;; Error*) echo "$line" >&2; cat <&3 >&2; exit 1 ;; esac
done
cat <&3 >/dev/null &
run cat converge.yaml

say "The document: one tenant with a production network. It is checked offline, then written to the store."
run converge validate site
run converge put site

say "What would it take? Planning changes nothing, and the plan is saved."
run -2 converge plan -detailed-exitcode -out=first.plan

say "Make it so: exactly that plan, once. Each step is journaled before it acts, and is done only once its result has been observed."
run converge apply -quiet first.plan

say "The second plan is empty."
run converge plan -detailed-exitcode

say "Someone changes the VPC behind converge's back. The service clears whatever a request omits, so more is lost..."
vpc=$(converge state show -json site/carbide.vpc/prod | sed -n 's/.*"id": *"\([^"]*\)".*/\1/p' | head -n 1)
quietly converge dev carbide call UpdateVpc "{\"id\": {\"value\": \"$vpc\"}, \"metadata\": {\"name\": \"prod\", \"description\": \"mine now\"}}"
say "... and drift shows exactly that."
run -2 converge drift

say "Applying the same document repairs it."
run converge apply -auto-approve -quiet
run converge drift

say "A bigger change: a new VPC with two segments and a stricter security group. Its last step will fail."
sed -e 's/HTTPS from anywhere, SSH from the operators/HTTPS from anywhere/' -e '/id: "ssh"/d' site/site.cue >site/next.cue
cat >>site/next.cue <<'CUE'

carbide: {
	vpc: staging: {tenant: "acme", network_security_group: "web"}
	network_segment: {
		"staging-a": {vpc: "staging", prefixes: [{prefix: "10.30.0.0/24", gateway: "10.30.0.1"}]}
		"staging-b": {vpc: "staging", prefixes: [{prefix: "10.30.1.0/24", gateway: "10.30.1.1"}]}
	}
}
CUE
mv site/next.cue site/site.cue
converge dev carbide dump >before.json
run converge dev carbide fault '{"method": "CreateNetworkSegment", "match": "10.30.1.0/24", "effect": "before", "code": "INVALID_ARGUMENT"}'
run -3 converge apply -auto-approve site

say "Reverted, and proven: the simulator's world is what it was, byte for byte."
converge dev carbide dump >after.json
run cmp before.json after.json
run converge runs
say "A site that runs itself: two site agents, and two nodes with agents that have enrolled. Nobody runs apply."
converge dev site -nodes=2 -replicas=2 itself >/dev/null 2>&1 &
agents=$!
until [ -e itself/converge.yaml ]; do sleep 0.1; done
cd itself
await converge plan -detailed-exitcode
run converge agent list

say "The document changes in the store, and comes true by itself."
sed 's/mcast_snooping_enable: true/mcast_snooping_enable: false/' site.cue >next.cue
mv next.cue site.cue
run converge put site.cue
await converge plan -detailed-exitcode site.cue
run converge runs

say "Someone changes a bridge of a node behind converge's back. It is put right."
run converge dev world put gpu-01/ovs.bridge/br-slice '{"mcast_snooping_enable": true}'
await converge drift
run converge runs

say "A change cuts a node off: its uplink goes down, and with it every connection to the site. The node's guard waits for 30 s to be told that the site has reached the node again, and then undoes the change by itself."
sed '0,/state: "up"/s//state: "down"/' site.cue >cut.cue
run -9 converge apply -auto-approve -quiet cut.cue
run converge dev world show -node=gpu-01 | grep -A8 '"uplink"'

say "The site agent that keeps the site is killed, and the document changes. The other one takes over, and makes it come true."
run converge lock status
run kill -9 "$(converge lock status -json | tr -d '\n' | sed 's/.*"keeper": *{[^}]*"pid": *\([0-9]*\).*/\1/')"
sed 's/mcast_snooping_enable: false/mcast_snooping_enable: true/' site.cue >next.cue
mv next.cue site.cue
run converge put site.cue
await converge plan -detailed-exitcode site.cue
run converge lock status
cd ..

say "That is all, and nothing of it is left behind. To try next, from here:"
cat <<'NEXT'
  bin/converge validate examples/gpu-site   # every kind, checked offline
  bin/converge schema carbide.vpc           # what a kind may contain
  bin/converge help apply                   # each command, with examples
NEXT

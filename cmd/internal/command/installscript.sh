#!/bin/sh
# Makes this machine a node of a converge site: installs the agent and the guard as services, and enrols.
# Made by: converge agent install-script
#
#   sh install.sh < TOKEN                          the token comes from: converge agent token create NODE
#   CONVERGE_TOKEN_FILE=TOKEN sh install.sh
#
# It may be repeated: what is there already stays, and a newer program replaces the old one. To install into an
# image instead of the running system: DESTDIR=DIR SYSTEMCTL=true sh install.sh
set -eu

fail() {
	echo "install: $*" >&2
	exit 1
}

digest_of() {
	sha256sum "$1" | cut -d ' ' -f 1
}

# put FILE: writes standard input to a file, and takes note when that changes it.
put() {
	cat > "$work/file"
	if ! cmp -s "$work/file" "$1"; then
		install -m 644 "$work/file" "$1.new"
		mv -f "$1.new" "$1"
		changed=yes
	fi
}

# Everything is in a function, so that nothing is done by a script that has arrived in part.
main() {
	url=[[URL]]
	sha256=[[SHA256]]
	servers=[[SERVERS]]
	node=[[NODE]]
	root=${DESTDIR:-}
	systemctl=${SYSTEMCTL:-systemctl}
	token=${CONVERGE_TOKEN_FILE:-}
	unset CONVERGE_TOKEN_FILE
	bin=$root/usr/local/bin/converge
	identity=$root/var/lib/converge-agent/identity
	changed=no
	umask 077

	[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "run it as root"
	for tool in curl sha256sum install cmp mktemp "$systemctl"; do
		command -v "$tool" > /dev/null || fail "$tool is missing on this machine"
	done
	if [ ! -f "$identity/identity.pem" ] && [ -z "$token" ] && [ -t 0 ]; then
		fail "a token is needed: sh $0 < TOKEN, or CONVERGE_TOKEN_FILE=TOKEN. At the site: converge agent token create NODE"
	fi
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM

	# The program. Nothing is installed unless it is the one that this script was made with.
	if [ ! -f "$bin" ] || [ "$(digest_of "$bin")" != "$sha256" ]; then
		curl --fail --silent --show-error --location --output "$work/converge" "$url" || fail "$url cannot be downloaded; nothing was changed"
		got=$(digest_of "$work/converge")
		[ "$got" = "$sha256" ] || fail "$url has the SHA-256 $got, and not $sha256: it is another program; nothing was changed"
		install -d -m 755 "$(dirname "$bin")"
		install -m 755 "$work/converge" "$bin.new"
		mv -f "$bin.new" "$bin" # at once: it may be running
		changed=yes
	fi

	# Settings. A file that is there belongs to whoever wrote it.
	install -d -m 750 "$root/etc/converge"
	if [ ! -e "$root/etc/converge/agent.yaml" ]; then
		{
			printf '%s\n' [[SERVERS_LINE]] 'dir: /var/lib/converge-agent/identity' 'guard: /var/lib/converge-agent/guard'
			if [ -S "$root/run/libvirt/libvirt-sock" ]; then
				echo 'libvirt: "qemu+unix:///system?socket=/run/libvirt/libvirt-sock"'
			fi
			if [ -S "$root/run/openvswitch/db.sock" ]; then
				echo 'ovs: "unix:/run/openvswitch/db.sock"'
			fi
			echo 'sysfs: /sys'
		} > "$work/agent.yaml"
		install -m 640 "$work/agent.yaml" "$root/etc/converge/agent.yaml"
		changed=yes
	fi

	# Services.
	install -d -m 755 "$root/etc/systemd/system"
	put "$root/etc/systemd/system/converge-guard.service" << 'END_OF_UNIT'
[[GUARD_UNIT]]END_OF_UNIT
	put "$root/etc/systemd/system/converge-agent.service" << 'END_OF_UNIT'
[[AGENT_UNIT]]END_OF_UNIT

	# The identity. The key is made here and stays here.
	install -d -m 700 "$root/var/lib/converge-agent"
	if [ ! -f "$identity/identity.pem" ]; then
		if [ -n "$token" ]; then
			cat < "$token" > "$work/token"
		else
			cat > "$work/token"
		fi
		[ -s "$work/token" ] || fail "there is no token: sh $0 < TOKEN, or CONVERGE_TOKEN_FILE=TOKEN. At the site: converge agent token create NODE"
		enrolled=no
		for server in $servers; do # any replica will do
			set -- agent bootstrap "-server=$server" "-token-file=$work/token" "-dir=$identity"
			[ -z "$node" ] || set -- "$@" "-node=$node"
			if "$bin" "$@"; then
				enrolled=yes
				break
			fi
		done
		[ "$enrolled" = yes ] || fail "this machine has not enrolled; run it again with a valid token"
	fi

	"$systemctl" daemon-reload
	"$systemctl" enable --now converge-guard.service converge-agent.service
	if [ "$changed" = yes ]; then # one that ran already has to be the new one; the timers of a guard are on disk
		"$systemctl" restart converge-guard.service converge-agent.service
	fi
	echo "The agent and the guard are installed. To see how they stand: $bin agent status -config=/etc/converge/agent.yaml"
}

main

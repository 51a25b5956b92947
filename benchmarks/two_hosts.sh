#!/usr/bin/env bash
# Two hosts on one machine: runs a command on both, joined by a link of a given rate and nothing else.
#
#   bash benchmarks/two_hosts.sh RATE COMMAND...            RATE as 1gbit, 100mbit, or none (no limit)
#   bash benchmarks/two_hosts.sh 100mbit python benchmarks/link_speed.py
#   bash benchmarks/two_hosts.sh 100mbit bash -c 'torchrun --nnodes 2 --node-rank $NODE_RANK \
#       --nproc-per-node 1 --master-addr $FIRST_HOST --master-port 29500 $(which fairseq-train) ...'
#
# A host is a network namespace; between them is a pair of virtual interfaces called wire, each of
# which sends through a token bucket of RATE (so both directions at once, as a switched network has
# it). There is no way out to anything else. COMMAND finds NODE_RANK (0 or 1), FIRST_HOST (the address
# of host 0) and the variables that keep gloo and nccl on the wire. Output of host 1 goes to stderr.
# When one of them fails the other is ended; when this script ends, however it does, so does
# everything it started, and the namespaces with it. Needs Linux, root or user namespaces, iproute2 and tc;
# where that is not to be had it says so and ends with 3. Cores, memory and disk are the same for both.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  missing() { echo "two_hosts.sh: no two hosts can be made here: $*" >&2; exit 3; }
  [ $# -ge 2 ] && [[ $1 =~ ^([1-9][0-9]*[kmg]bit|none)$ ]] || {
    echo "two_hosts.sh: RATE ${1:-} and a command: give a rate such as 100mbit, or none" >&2
    exit 2
  }
  for tool in unshare nsenter ip tc; do
    command -v $tool > /dev/null || missing "$tool is not installed (util-linux, iproute2)"
  done
  own=(unshare --net --pid --fork --kill-child --mount-proc)
  "${own[@]}" true 2> /dev/null || own+=(--map-root-user)
  "${own[@]}" true 2> /dev/null || missing "network namespaces are not allowed: run it as root"
  exec "${own[@]}" bash "${BASH_SOURCE[0]}" --inside "$@"
fi

RATE=$2
shift 2
fail() { echo "two_hosts.sh: no two hosts can be made here: $*" >&2; exit 3; }

unshare --net sleep infinity &
other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
there() { nsenter --target $other --net "$@"; }

ip link add wire type veth peer name wire netns $other || fail "no pair of virtual interfaces (veth)"
set_up() { # ADDRESS [there]
  ${2:-} ip link set lo up
  ${2:-} ip link set wire addrgenmode none # gloo would take a link-local IPv6 address for the host's
  ${2:-} ip address add "$1/24" dev wire
  ${2:-} ip link set wire up
  [ "$RATE" = none ] || ${2:-} tc qdisc add dev wire root tbf rate "$RATE" burst 128kb latency 100ms ||
    fail "the kernel has no token bucket filter (tbf)"
}
set_up 10.86.0.1
set_up 10.86.0.2 there

export FIRST_HOST=10.86.0.1
export GLOO_SOCKET_IFNAME=wire NCCL_SOCKET_IFNAME=wire TP_SOCKET_IFNAME=wire
NODE_RANK=1 there "$@" >&2 &
NODE_RANK=0 "$@" &
# Both have to end well. The first that does not decides: the other could wait for it for long.
status=0
{ wait -n && wait -n; } || status=$?
exit "$status"

#!/usr/bin/env bash
# N emulated devices on one machine: runs a command on each, with a share of a core and a link of its own.
#
#   bash benchmarks/devices.sh N SHARE RATE COMMAND...
#   bash benchmarks/devices.sh 2 1 1gbit python benchmarks/calibration.py
#   bash benchmarks/devices.sh 2 none 100mbit bash -c 'torchrun --nnodes $NODES --node-rank $NODE_RANK \
#       --nproc-per-node 1 --master-addr $FIRST_HOST --master-port 29500 $(which fairseq-train) ...'
#
#   N       1 to 99 devices
#   SHARE   of a core, 0.05 to 1, all threads of a device together, in periods of 10 ms; none: no limit.
#           1 is a limit too: gloo's threads do not get a second core that happens to be idle
#   RATE    of the link in either direction, as 250mbit or 1gbit; none: no limit
#
# A device is a network namespace, plugged by a pair of virtual interfaces into a bridge that leads nowhere
# else. Both ends of the pair send through a token bucket of RATE, so a device sends and receives RATE at
# the same time, whoever it talks to, as in a switched network. Its processes are in a CPU cgroup (v1 or
# v2) with a quota of SHARE. COMMAND finds NODE_RANK (0 to N-1), NODES (N), FIRST_HOST (the address of
# device 0), the variables that keep gloo and nccl on the link, OMP_NUM_THREADS=1 where nothing else is said,
# and nothing on its standard input. Output of device 0 goes to stdout, that of the others to stderr.
#
# The first COMMAND that fails decides: the others are ended, and its exit code is the script's. However
# this script ends (kill -9 of it or of any process below it included), all it started ends too. What can
# outlive a process is only an empty cgroup, if two processes are killed at once; the next start removes it.
# Needs Linux, iproute2 and root; with SHARE none, user namespaces do in place of root. Where devices can't
# be made it says why in one line and exits with 3; with 2 if it was called in a wrong way.
#
# What such an emulation can say: how often messages are sent and how large they are, what is computed in
# the meantime, and which of two systems is faster when a byte costs so much time and an operation so much.
# That last ratio is all that speed depends on, so look at it first (calibration.py and the benchmarks
# print theirs): operations a device does in the time in which its link carries one byte,
#
#   FLOP per byte                    device          link
#      210    a core of 235 GFLOP/s                  loopback of the same machine, 1.1 GB/s
#      750                                           2.5 Gbit/s: 0.31 GB/s
#    1,880                                           1 Gbit/s: 0.125 GB/s
#    1,770    0.45 of it, 106 GFLOP/s                500 Mbit/s: 0.060 GB/s
#    3,540                                           250 Mbit/s: 0.030 GB/s
#    1,400    V100, 14 TFLOP/s (float32)             PCIe 3: 10 GB/s
#      650    A100, 19.5 TFLOP/s (float32)           PCIe 4, 30 GB/s in practice
#   10,400    A100, 312 TFLOP/s (bfloat16)           the same
#   11,200    V100, 14 TFLOP/s                       10 Gbit/s Ethernet
#
# What it can't say: anything of a GPU's kernels, launches and memory; of latency (a round trip here is tens of
# microseconds plus what the scheduler takes: up to 10 ms if the quota is used up); of a cluster with other
# traffic. Sending costs the device processor time, as on a host without offload. Devices share caches,
# memory and clock rate, so N of them do less than N times one: the calibration says how much less. The
# sum of SHARE should leave something of the machine's cores for the kernel.
set -euo pipefail

complain() { echo "devices.sh: $*" >&2; }
fail() { complain "no emulated devices can be made here: $*"; exit 3; }

# A device: waits until all are set up, then is COMMAND.

if [ "${1:-}" = --device ]; then
  export NODE_RANK=$2 CGROUP=$3
  shift 3
  [ "$CGROUP" = none ] || echo 0 > "$CGROUP/$NODE_RANK/cgroup.procs"
  unset CGROUP
  kill -STOP $$
  exec "$@"
fi

# Inside: process 1 of a pid namespace, with which all others end. Descriptor 7 ends with the supervisor.

if [ "${1:-}" = --inside ]; then
  N=$2 RATE=$3 CGROUP=$4
  shift 4
  read -r _ <&7 &
  export FIRST_HOST=10.86.0.1 NODES=$N OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  export GLOO_SOCKET_IFNAME=wire NCCL_SOCKET_IFNAME=wire TP_SOCKET_IFNAME=wire
  limit() { # INTERFACE [PROGRAM...]
    local interface=$1
    shift
    [ "$RATE" = none ] || "$@" tc qdisc add dev "$interface" root tbf rate "$RATE" burst 256kb latency 100ms ||
      fail "the kernel has no token bucket filter (tbf), or not of rate $RATE"
  }
  ip link add switch type bridge || fail "no bridge"
  ip link set switch addrgenmode none up
  devices=()
  for ((i = 0; i < N; i++)); do
    if [ "$i" = 0 ]; then exec 9>&1; else exec 9>&2; fi
    unshare --net bash "${BASH_SOURCE[0]}" --device "$i" "$CGROUP" "$@" 7<&- >&9 9>&- &
    devices+=($!)
  done
  for i in "${!devices[@]}"; do
    pid=${devices[i]}
    until [[ $(< "/proc/$pid/stat") =~ \)\ T ]]; do
      [ -e "/proc/$pid/cmdline" ] && [[ ! $(< "/proc/$pid/stat") =~ \)\ Z ]] || fail "device $i did not start"
      sleep 0.01
    done 2> /dev/null
    on=(nsenter --target "$pid" --net)
    ip link add "port$i" type veth peer name wire netns "$pid" || fail "no virtual interfaces (veth)"
    ip link set "port$i" addrgenmode none master switch up
    limit "port$i"
    "${on[@]}" ip link set lo up
    # (without addrgenmode gloo would take a link-local IPv6 address for the device's)
    "${on[@]}" ip link set wire addrgenmode none
    "${on[@]}" ip address add "10.86.0.$((i + 1))/24" dev wire
    "${on[@]}" ip link set wire up
    limit wire "${on[@]}"
  done
  kill -CONT "${devices[@]}"
  for _ in "${devices[@]}"; do wait -n || exit; done # (the reader ends only if the supervisor does)
  exit 0
fi

NAME=emulated_devices

cgroups() { # prints the folder below which a CPU cgroup can be made, and whether that is v1 or v2
  awk '$3 == "cgroup" && $4 ~ /(^|,)cpu(,|$)/ {print $2, "v1"; exit}' /proc/self/mounts
  awk '$3 == "cgroup2" {print $2, "v2"; exit}' /proc/self/mounts
}

limit_cores() { # SHARE: makes a cgroup for each device below CGROUP
  local digits=${1#*.}000 quota=10000 root version i # the quota in microseconds
  [[ $1 == 1* ]] || quota=$((10#${digits:0:3} * 10))
  read -r root version < <(cgroups) || fail "no cgroup file system is mounted (or use SHARE none)"
  for old in "$root/$NAME".*; do # of a start whose script and keeper were killed at once
    [ ! -d "$old" ] || [ -e "/proc/${old##*.}" ] || rmdir "$old"/*/ "$old" 2> /dev/null || true
  done
  CGROUP=$root/$NAME.$$
  mkdir "$CGROUP" 2> /dev/null || fail "$root can't be written: run it as root (or use SHARE none)"
  if [ "$version" = v2 ]; then
    { echo +cpu > "$root/cgroup.subtree_control" && echo +cpu > "$CGROUP/cgroup.subtree_control"; } 2> /dev/null ||
      fail "cgroup v2 at $root does not hand out the cpu controller (or use SHARE none)"
  fi
  for ((i = 0; i < N; i++)); do
    {
      mkdir "$CGROUP/$i"
      if [ "$version" = v1 ]; then
        echo 10000 > "$CGROUP/$i/cpu.cfs_period_us" && echo "$quota" > "$CGROUP/$i/cpu.cfs_quota_us"
      else
        echo "$quota 10000" > "$CGROUP/$i/cpu.max"
      fi
    } 2> /dev/null || fail "the kernel limits no CPU time by cgroups (or use SHARE none)"
  done
}

remove() { # CGROUP, when its processes are ending
  local try
  for ((try = 0; try < 500; try++)); do
    [ -d "$1" ] || return 0
    rmdir "$1"/*/ "$1" 2> /dev/null || sleep 0.02
  done
  complain "the cgroup $1 could not be removed"
}

# The keeper, in a session of its own: removes what the kernel does not, whatever happens to the script,
# which holds the other end of descriptor 7.

if [ "${1:-}" = --keep ]; then
  N=$2 SHARE=$3 RATE=$4 CGROUP=none status=0
  shift 4
  exec 7<&0
  own=(unshare --net --pid --mount --fork --kill-child --mount-proc)
  "${own[@]}" true 2> /dev/null || own+=(--map-root-user)
  "${own[@]}" true 2> /dev/null || fail "network namespaces are not allowed: run it as root"
  trap '[ "$CGROUP" = none ] || remove "$CGROUP"' EXIT
  [ "$SHARE" = none ] || limit_cores "$SHARE"
  "${own[@]}" bash "${BASH_SOURCE[0]}" --inside "$N" "$RATE" "$CGROUP" "$@" < /dev/null || status=$?
  exit "$status"
fi

# The script

wrong() { complain "$*; usage: devices.sh N SHARE RATE COMMAND..."; exit 2; }
[ $# -ge 4 ] || wrong "too few arguments"
[[ $1 =~ ^[1-9][0-9]?$ ]] || wrong "N $1: give 1 to 99 devices"
[[ $2 =~ ^(1|1\.0+|0?\.[0-9]{1,3}|none)$ && ! $2 =~ ^0?\.0([0-4]|$) ]] || wrong "SHARE $2: give 0.05 to 1, or none"
[[ $3 =~ ^([1-9][0-9]*[kmg]bit|none)$ ]] || wrong "RATE $3: give a rate such as 250mbit, or none"
for tool in unshare nsenter setsid ip tc awk; do
  command -v $tool > /dev/null || fail "$tool is not installed (util-linux, iproute2)"
done

exec 8> >(exec setsid bash "${BASH_SOURCE[0]}" --keep "$@")
keeper=$!
for signal in INT TERM HUP; do
  trap "trap '' INT TERM HUP; exec 8>&-; wait $keeper || true; exit \$((128 + \$(kill -l $signal)))" $signal
done
status=0
wait "$keeper" || status=$?
exec 8>&- # if the keeper was killed, what is inside ends by this, and
read -r root _ < <(cgroups) && remove "$root/$NAME.$keeper"
exit "$status"

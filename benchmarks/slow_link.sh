#!/usr/bin/env bash
# benchmarks/translation_parallel.py on a machine whose loopback is as slow as a network.
#
#   bash benchmarks/slow_link.sh RATE [options of translation_parallel.py]      RATE as 1gbit, 500mbit
#   bash benchmarks/slow_link.sh 1gbit --workload fixed --rounds 3 --updates 2 \
#       --systems single legacy_ddp hybrid --json build/slow_link.json          about 5 minutes
#
# The workers run in a network namespace of their own, where what all of them send together passes
# through one token bucket of this rate, plus headers. (Two machines with a full-duplex link of RATE
# could send that much each at the same time.) They share no memory. Needs root, iproute2 and Linux's tbf.
set -euo pipefail
RATE=${1:?give a rate such as 1gbit}
shift
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=python
[ ! -x "$HERE/../.venv/bin/python" ] || PYTHON=$HERE/../.venv/bin/python
if ! unshare -n true 2> /dev/null; then
  echo "slow_link.sh: no network namespace can be made here: run it as root" >&2
  exit 2
fi
export RATE PYTHON HERE OMP_NUM_THREADS=1
exec unshare -n bash -c '
  set -e
  ip link set lo up
  tc qdisc add dev lo root tbf rate "$RATE" burst 512kb latency 100ms
  exec "$PYTHON" "$HERE/translation_parallel.py" --sums-through messages "$@"' slow_link "$@"

# Shared by the recipes; sourced, not run.
# Sets ROOT and PLUGIN, prefers the project's own .venv, one torch thread per worker.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PLUGIN=$ROOT/fairseq_hybrid
PIECES=$ROOT/examples/translation/pieces.py
[ ! -x "$ROOT/.venv/bin/python" ] || PATH=$ROOT/.venv/bin:$PATH
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
DRY=

say() { printf '\n== %s\n' "$*"; }

# run COMMAND...: do it, or with --dry-run show it
run() {
  if [ -n "$DRY" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

# logged LOG PATTERN COMMAND...: all output to the log, on the screen only lines with the pattern
logged() {
  local log=$1 show=$2 status=0
  shift 2
  if [ -n "$DRY" ]; then run "$@"; return; fi
  "$@" 2>&1 | tee -a "$log" | { grep --line-buffered -E "$show" || true; } || status=$?
  if [ "$status" -ne 0 ]; then
    echo "failed; the end of $log:" >&2
    tail -n 5 "$log" >&2
    exit "$status"
  fi
}

# hypotheses GENERATE_OUTPUT: fairseq-generate's translations in the order of the test set
hypotheses() { grep '^H-' "$1" | LC_ALL=C sort -t- -k2n | cut -f3; }

# Shared by the recipes; sourced, not run.
# Sets ROOT and PLUGIN, takes the project's own .venv if no other with fairseq is active, one torch thread per worker.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PLUGIN=$ROOT/fairseq_hybrid
TOY_CORPUS=$ROOT/examples/toy_corpus
PIECES=$ROOT/examples/translation/pieces.py
PROGRESS=$ROOT/examples/translation/progress.py
if [ -x "$ROOT/.venv/bin/python" ] && [ ! -x "${VIRTUAL_ENV:-/nowhere}/bin/fairseq-train" ]; then
  PATH=$ROOT/.venv/bin:$PATH
fi
THREADS=${OMP_NUM_THREADS:-} # what the user says of them
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
DRY= TRAIN_ON=

stop() { echo "${0##*/}: $*" >&2; exit 2; }

say() { printf '\n== %s\n' "$*"; }

# run COMMAND...: do it, or with --dry-run show it
run() {
  if [ -n "$DRY" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

# short PATH: as one would type it here
short() { printf '%q' "${1#"$PWD"/}"; }

# program NAME: how to start one of our commands from here
program() { short "$(command -v "$1" || echo "$1")"; }

# next TITLE COMMAND: what to do with the result
next() { printf '  %s:\n    %s\n' "$@"; }

# again VARIABLE...: the command that was typed, with those of the settings that came with it
again() {
  local name
  for name in "$@"; do
    [ -z "${!name:-}" ] || ! printenv "$name" > /dev/null || printf '%s=%q ' "$name" "${!name}"
  done
  printf 'bash %s' "$(short "$0")"
}

# whole_numbers VARIABLE...: each is one above 0
whole_numbers() {
  local name
  for name in "$@"; do
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || stop "$name=${!name} is not a whole number above 0: give one such as 2"
  done
}

cores() { env -u OMP_NUM_THREADS nproc 2> /dev/null || getconf _NPROCESSORS_ONLN; }

# all_cores: as many threads for each of WORKERS as there are cores, if the user has not said how many
all_cores() {
  local each=$(($(cores) / WORKERS))
  [ -n "$THREADS" ] || export OMP_NUM_THREADS=$((each > 1 ? each : 1))
}

# finished FOLDER: says so if the training there has ended. A try (EXTRA="--max-update 200") is not to be
# taken for the whole.
finished() {
  local before
  [ -n "$DRY" ] || [ -z "$TRAIN_ON" ] || rm -f "$1/trained"
  [ -e "$1/trained" ] || return 1
  before=$(cat "$1/trained")
  [ -n "$DRY" ] || [ "$before" = "$EXTRA" ] ||
    stop "$1 was trained with EXTRA=\"$before\", not \"$EXTRA\": remove $1/trained to go on, or give another SAVE"
  echo "  already trained: $(short "$1")"
}

# ended_with_us PID [LOG]: wait for a background process; ending this script ends that too, and shows its
# last line in LOG
# (bash runs no trap before a foreground command is done, and Ctrl-C does not reach the background)
ended_with_us() {
  local pid=$1 status=0 stop=
  trap 'stop=143; kill -TERM "$pid" 2>/dev/null || true' TERM
  trap 'stop=130; kill -TERM "$pid" 2>/dev/null || true' INT
  trap 'stop=129; kill -TERM "$pid" 2>/dev/null || true' HUP
  while kill -0 "$pid" 2>/dev/null; do
    status=0
    wait "$pid" || status=$?
  done
  trap - TERM INT HUP
  [ -z "$stop" ] || { [ -z "${2:-}" ] || tail -n 1 "$2" >&2; exit "$stop"; }
  return "$status"
}

# logged LOG PATTERN COMMAND...: all output to the log, on the screen only lines with the pattern
logged() {
  local log=$1 show=$2 status=0
  shift 2
  if [ -n "$DRY" ]; then run "$@"; return; fi
  "$@" > >(tee -a "$log" | { grep --line-buffered -E "$show" || true; }) 2>&1 &
  ended_with_us $! || status=$?
  if [ "$status" -ne 0 ]; then
    echo "failed; the end of $log:" >&2
    tail -n 5 "$log" >&2
    exit "$status"
  fi
}

# same_settings FOLDER WAY_OUT VARIABLE...: what is in a folder was made with these values; others are
# refused, as what is there would be taken for theirs
same_settings() {
  local folder=$1 way_out=$2 name line before lines=()
  shift 2
  for name in "$@"; do
    line=$name=$(tr -s "[:space:]" " " <<< "${!name-}")
    line=${line% }
    lines+=("$line")
    [ -e "$folder/settings" ] || continue
    before=$(grep "^$name=" "$folder/settings" || true)
    [ "$line" = "$before" ] || {
      echo "${0##*/}: $folder was made with $before, not ${line#*=}: give $way_out, or remove the folder" >&2
      exit 2
    }
  done
  [ -e "$folder/settings" ] || printf '%s\n' "${lines[@]}" > "$folder/settings"
}

# watched LOG [--updates N | --epochs N] -- COMMAND...: a training; all it says is appended to the log, its
# progress is on the screen. The training writes to the file itself, so nothing that befalls progress.py or
# the screen stops it. progress.py ends when descriptor 9 is closed, by us or by our death.
watched() {
  local log=$1 options=() status=0 offset progress
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  if [ -n "$DRY" ]; then run "$@"; return; fi
  touch "$log"
  offset=$(wc -c < "$log") # now: what is in >(...) runs when it likes
  exec 9> >(exec python "$PROGRESS" "$log" "$offset" ${options[@]+"${options[@]}"})
  progress=$!
  "$@" >> "$log" 2>&1 9>&- &
  ended_with_us $! "$log" || status=$?
  exec 9>&-
  wait "$progress" 2> /dev/null || true
  if [ "$status" -ne 0 ]; then
    echo "failed (exit status $status); the end of $log:" >&2
    tail -n 5 "$log" >&2
    exit "$status"
  fi
}

# hypotheses GENERATE_OUTPUT: fairseq-generate's translations in the order of the test set
hypotheses() { grep '^H-' "$1" | LC_ALL=C sort -t- -k2n | cut -f3; }

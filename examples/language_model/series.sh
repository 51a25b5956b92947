# What reproduce-*.sh share; sourced after tools.sh, not run.
#
# Every run is one call of wikitext2.sh with its own SAVE=$OUT/NAME, on the same prepared text; at the
# end results.py makes the table. With --small the text is the English side of the toy corpus.

RECIPE=$ROOT/examples/language_model/wikitext2.sh
SMALL=

# arguments PAPER WORDS...: --small and --dry-run; sets OUT and WORKERS
arguments() {
  local paper=$1 word
  shift
  for word in "$@"; do
    case $word in
      --dry-run) DRY=1 ;;
      --small) SMALL=1 ;;
      *) stop "unknown argument $word: use --small or --dry-run; settings are variables" ;;
    esac
  done
  WORKERS=${WORKERS:-2}
  [[ $WORKERS =~ ^[1-9][0-9]*$ ]] && [ "$WORKERS" -gt 1 ] ||
    stop "WORKERS=$WORKERS is not a number of workers: give 2 or more"
  export SEED=${SEED:-1} OUT=${OUT:-$ROOT/$paper${SMALL:+-small}-run}
}

# known NAMES RUN...: a wrong name is noticed before the work
known() {
  local names=$1 run
  shift
  for run in "$@"; do
    [[ " $names " = *" $run "* ]] || stop "RUNS has $run: use ${names// /, }"
  done
}

# Words and punctuation apart, in files named as WikiText-2's are.
small_text() {
  local split folder=$OUT/text
  export WIKITEXT2=$folder
  say "text: the English side of the toy corpus"
  [ ! -e "$folder/wiki.test.tokens" ] || return 0
  run python "$TOY_CORPUS" "$folder/both" --train "${SENTENCES:-3000}" --valid 200 --test 200
  for split in train valid test; do
    if [ -n "$DRY" ]; then
      echo "separated < $folder/both/$split.en > $folder/wiki.$split.tokens"
    else
      separated < "$folder/both/$split.en" > "$folder/$split.part"
      mv "$folder/$split.part" "$folder/wiki.$split.tokens"
    fi
  done
}

separated() { sed -E 's/([.,;:!?])( |$)/ \1\2/g'; }

# train NAME TITLE WORKERS BACKEND CRITERION [MORE]: one run, to its test perplexity
train() {
  local save=$OUT/$1
  say "$1: $2"
  [ ! -e "$save/finished" ] || return 0
  [ -n "$DRY" ] || mkdir -p "$save"
  SAVE=$save WORKERS=$3 BACKEND=$4 CRITERION=$5 BATCH=$((STREAMS / $3)) EXTRA="${6:-} ${EXTRA:-}" \
    bash "$RECIPE" ${DRY:+--dry-run}
  [ -z "$DRY" ] || return 0
  printf 'title: %s\nworkers: %s\nepoch_tokens: %s\n' "$2" "$3" "$(epoch_tokens)" > "$save/run.txt"
  touch "$save/finished"
}

# Of the training text; logs of workers that do not wait for each other count worker 0's only.
epoch_tokens() { sed -nE 's/.*wiki\.train\.tokens: [0-9]+ sents, ([0-9]+) tokens.*/\1/p' "$OUT/prepare.log" | tail -n 1; }

# finish PAPER BASELINE NAME...: the table
finish() {
  local paper=$1 baseline=$2
  shift 2
  say "result"
  run python "$ROOT/examples/translation/results.py" "$OUT" "$paper" "$baseline" "$@"
}

#!/usr/bin/env bash
# WikiText-2: what does training on a sample of the words cost in perplexity, and gain in time?
#
#   WIKITEXT2=folder bash benchmarks/language_model_quality.sh           everything
#   WIKITEXT2=folder bash benchmarks/language_model_quality.sh full sampled no-correction
#   bash benchmarks/language_model_quality.sh --table                    from what is there
#
# The first sixth of the training text (so that full softmax takes minutes, not hours), the whole
# vocabulary of 33,278 words, an LSTM layer of 128, five epochs; validated on a quarter of the validation
# text after each epoch, tested on all of the test text, both by full softmax. Runs of one worker two at
# a time (JOBS=2), then those of two workers one after the other; one thread each. Goes on where it was
# stopped. At the end: benchmarks/results/language_model_quality.json, the tables and, with
# matplotlib, a plot.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OUT=${OUT:-$ROOT/language-model-run} RECIPE=$ROOT/examples/language_model/wikitext2.sh
JOBS=${JOBS:-2}
PART=${PART:-6120}
export EPOCHS=${EPOCHS:-5} SEED=${SEED:-1}
export MODEL="--arch hybrid_lstm_lm --decoder-embed-dim 128 --decoder-hidden-size 128
  --decoder-layers 1 --dropout 0.2" SUBSETS=test
BIN=$ROOT/.venv/bin

# A full softmax wants a lower learning rate than a sample (its rare words get a gradient in every
# update), so it is run with two of them, and the better one is what the others are compared with.
# name; workers; --ddp-backend; --criterion with its options. A sample is `frequent + random` words
# and those of the minibatch; by default 416 + 832 of this vocabulary.
runs() {
  cat <<'RUNS'
full;1;legacy_ddp;cross_entropy
full-slow;1;legacy_ddp;cross_entropy
sampled;1;legacy_ddp;sampled_softmax
quarter-sample;1;legacy_ddp;sampled_softmax --sample-frequent 104 --sample-random 208
half-sample;1;legacy_ddp;sampled_softmax --sample-frequent 208 --sample-random 416
double-sample;1;legacy_ddp;sampled_softmax --sample-frequent 832 --sample-random 1664
no-correction;1;legacy_ddp;sampled_softmax --sample-correction none
no-frequent;1;legacy_ddp;sampled_softmax --sample-frequent 0 --sample-random 1248
no-random;1;legacy_ddp;sampled_softmax --sample-frequent 1248 --sample-random 0
minibatch-only;1;legacy_ddp;sampled_softmax --sample-frequent 0 --sample-random 0
sampled-2;2;sampled;sampled_softmax
async-sampled-2;2;async;sampled_softmax
async-dense-2;2;async;cross_entropy
RUNS
}

train() { # NAME;WORKERS;BACKEND;CRITERION
  local name TIMEFORMAT='%R %U %S'
  IFS=';' read -r name WORKERS BACKEND CRITERION <<< "$1"
  export WORKERS BACKEND CRITERION SAVE=$OUT/$name-$SEED
  local lr=0.008
  case $name in full | async-dense*) lr=0.004 ;; full-slow) lr=0.002 ;; esac
  export OPTIMIZER="--optimizer adam --lr $lr --clip-norm 0.25 --lr-scheduler exponential
    --final-lr 0.0004"
  export BATCH=$((16 / WORKERS)) # as many words per update, or (async) per pair of updates
  mkdir -p "$SAVE"
  echo "$1" > "$SAVE/run.txt"
  [ -e "$SAVE/finished" ] || {
    { time bash "$RECIPE" > "$SAVE/recipe.log" 2>&1 && touch "$SAVE/finished"; } 2>> "$SAVE/seconds.txt"
  }
}

prepare() {
  [ ! -e "$OUT/data/done" ] || return 0
  mkdir -p "$OUT/text"
  "$BIN/fairseq-preprocess" --only-source --trainpref "$WIKITEXT2/wiki.train.tokens" \
    --dict-only --destdir "$OUT/dictionary" > "$OUT/prepare.log" 2>&1
  head -n "$PART" "$WIKITEXT2/wiki.train.tokens" > "$OUT/text/train"
  head -n 940 "$WIKITEXT2/wiki.valid.tokens" > "$OUT/text/valid"
  "$BIN/fairseq-preprocess" --only-source --srcdict "$OUT/dictionary/dict.txt" \
    --trainpref "$OUT/text/train" --validpref "$OUT/text/valid" \
    --testpref "$WIKITEXT2/wiki.test.tokens" --destdir "$OUT/data" --workers 1 >> "$OUT/prepare.log" 2>&1
  touch "$OUT/data/done"
}

if [ "${1:-}" != --table ]; then
  : "${WIKITEXT2:?give the folder with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens}"
  export WIKITEXT2
  prepare
  wanted=$(IFS='|'; echo "${*:-.*}")
  export -f train
  chosen() { runs | grep -E "^($wanted);$1;" || true; } # WORKERS
  chosen 1 | tr '\n' '\0' | xargs -0 -r -P "$JOBS" -n 1 bash -c 'train "$0"'
  chosen 2 | tr '\n' '\0' | xargs -0 -r -n 1 bash -c 'train "$0"'
fi
exec "$BIN/python" "$ROOT/benchmarks/language_model_quality.py" "$OUT" "$ROOT/benchmarks/results"

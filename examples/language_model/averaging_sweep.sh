#!/usr/bin/env bash
# The exploration of Su & Chen (2015) on text: how far apart may workers train, and what helps?
#
#   WIKITEXT2=folder bash examples/language_model/averaging_sweep.sh             about 3 h on 2 cores
#   WIKITEXT2=folder bash examples/language_model/averaging_sweep.sh --small     minutes: does it run?
#   WIKITEXT2=folder bash examples/language_model/averaging_sweep.sh --dry-run   the commands only
#
# An n-gram network (feedforward_lm) is trained on a part of WikiText-2 in all combinations of the
# lists below, each on the same number of words. Every worker is a process, whatever the number of
# cores: 16 of them can be studied for convergence on two, only not for speed. Ends with
# OUT/sweep.csv, OUT/sweep.json (with curves), OUT/sweep.md and, with matplotlib, OUT/sweep.png:
# perplexity against interval and against workers. Goes on where it was stopped; finished runs are
# kept, so lists can be extended later. All settings are environment variables:
#
#   OPTIMIZERS="sgd ng_sgd"   STARTS="random rbm"      WORKERS="1 2 4 8 16"   INTERVALS="1 10 50"
#   MINIBATCHES="128 256"     SCHEDULES="exponential newbob"                  SEEDS="1"
#   SCALES="sqrt"             --lr-scale-workers: none, sqrt, linear
#   BACKENDS="averaging"      also: legacy_ddp, bmuf (fairseq's; with sgd only)
#   SGD_RATES="1" NG_RATES="1"  learning rates at the beginning; they end at a tenth
#   TOKENS=1200000  words to train on in each run, all workers together
#   TRAIN_LINES=3672      of the training text (a tenth), VALID_LINES=400, VOCABULARY=5000 words
#   MODEL="..."     options of feedforward_lm        PRETRAIN="..."  of fairseq-hybrid-pretrain
#   POINTS=8        validations in a run             OUT=folder
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../translation/tools.sh"
SWEEP=$ROOT/examples/language_model/averaging_sweep.py
SMALL=
for argument; do
  case $argument in
    --dry-run) DRY=1 ;;
    --small) SMALL=1 ;;
    *) echo "averaging_sweep.sh: unknown argument $argument: --small and --dry-run are known, settings are variables" >&2; exit 2 ;;
  esac
done
if [ -n "$SMALL" ]; then
  : "${OUT:=$ROOT/averaging-run-small}" "${WORKERS:=1 2 4}" "${INTERVALS:=10}" "${MINIBATCHES:=128}"
  : "${SCHEDULES:=exponential}" "${TOKENS:=40000}" "${TRAIN_LINES:=400}" "${VALID_LINES:=50}"
  : "${VOCABULARY:=1000}" "${POINTS:=2}"
fi
export OUT=${OUT:-$ROOT/averaging-run}
export OPTIMIZERS=${OPTIMIZERS:-sgd ng_sgd} STARTS=${STARTS:-random rbm}
export WORKERS=${WORKERS:-1 2 4 8 16} INTERVALS=${INTERVALS:-1 10 50}
export MINIBATCHES=${MINIBATCHES:-128 256} SCHEDULES=${SCHEDULES:-exponential newbob}
export SEEDS=${SEEDS:-1} SCALES=${SCALES:-sqrt} BACKENDS=${BACKENDS:-averaging}
export SGD_RATES=${SGD_RATES:-1} NG_RATES=${NG_RATES:-1}
export TOKENS=${TOKENS:-1200000} POINTS=${POINTS:-8}
export MODEL=${MODEL:-"--ngram 5 --decoder-embed-dim 64 --hidden-layers 3 --hidden-size 128 --dropout 0"}
TRAIN_LINES=${TRAIN_LINES:-3672} VALID_LINES=${VALID_LINES:-400} VOCABULARY=${VOCABULARY:-5000}
PRETRAIN=${PRETRAIN:-}

say "1/4  text: $TRAIN_LINES lines of WikiText-2, $VOCABULARY words"
if [ ! -e "$OUT/data/done" ]; then
  if [ -z "${WIKITEXT2:-}" ]; then
    echo "averaging_sweep.sh: WIKITEXT2= must name a folder with wiki.train.tokens and wiki.valid.tokens" >&2
    exit 2
  fi
  run mkdir -p "$OUT/text"
  for split in train valid; do
    file=$WIKITEXT2/wiki.$split.tokens lines=$TRAIN_LINES
    [ "$split" = train ] || lines=$VALID_LINES
    [ -n "$DRY" ] || [ -e "$file" ] || { echo "averaging_sweep.sh: WIKITEXT2=$WIKITEXT2 has no wiki.$split.tokens" >&2; exit 2; }
    if [ -n "$DRY" ]; then echo "head -n $lines $file > $OUT/text/$split"; else head -n "$lines" "$file" > "$OUT/text/$split"; fi
  done
  logged "$OUT/prepare.log" 'sents,' \
    fairseq-preprocess --only-source --trainpref "$OUT/text/train" --validpref "$OUT/text/valid" \
    --nwordssrc "$VOCABULARY" --destdir "$OUT/data" --workers 1
  run touch "$OUT/data/done"
fi

say "2/4  fairseq-hybrid-pretrain, once per seed"
for seed in $SEEDS; do
  case " $STARTS " in *" rbm "*) ;; *) continue ;; esac
  [ ! -e "$OUT/rbm-$seed/pretrained.pt" ] || continue
  [ -n "$DRY" ] || mkdir -p "$OUT/rbm-$seed"
  # shellcheck disable=SC2086  (MODEL and PRETRAIN are lists of options)
  logged "$OUT/rbm-$seed/pretrain.log" '\| pretrain \||pretrained:' \
    fairseq-hybrid-pretrain "$OUT/data" --cpu --task language_modeling --tokens-per-sample 32 \
    --arch feedforward_lm $MODEL --seed "$seed" --save-dir "$OUT/rbm-$seed" $PRETRAIN \
    --log-format simple --log-interval 1000
done

say "3/4  fairseq-train, for every combination"
python "$SWEEP" ${DRY:+--dry-run}

say "4/4  results"
[ -n "$DRY" ] || python "$SWEEP" --report

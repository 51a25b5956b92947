#!/usr/bin/env bash
# Multi30k de-en: is a model trained by the wavefront on two workers as good as one trained by one?
#
#   MULTI30K=folder bash benchmarks/parallel_quality.sh [single hybrid decoupled ...]
#   bash benchmarks/parallel_quality.sh --table                  from what is there
#
# A small model (2+2 layers of 128, the first in both directions, 4,000 pieces), eight epochs, the last three at a
# falling rate, two seeds. All systems have the same batches and so the same number of updates: two workers take
# a batch of 400 target words each, one worker two of them (--update-freq 2). Dropout is drawn differently, so
# the runs are not equal digit by digit; early in training even rounding makes runs differ (docs/hybrid.md), so
# compare them at the end. One thread per worker, runs of one worker two at a time; goes on where it was
# stopped. About 8 minutes for each run of two workers on 2 idle cores.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OUT=${OUT:-$ROOT/multi30k-run} MULTI30K=${MULTI30K:-} SUBWORDS=4000
SEEDS=${SEEDS:-"1 2"}
SYSTEMS=(single legacy_ddp hybrid decoupled)
RECIPE=$ROOT/examples/translation/multi30k.sh
export MODEL="--arch hybrid_lstm --encoder-embed-dim 128 --encoder-hidden-size 128 --encoder-layers 2
  --encoder-bidirectional-first --share-all-embeddings --dropout 0.2"
export TRAINING="--optimizer adam --lr 0.002 --clip-norm 1.0 --lr-scheduler fixed --force-anneal 6
  --lr-shrink 0.3 --max-epoch 8 --criterion label_smoothed_cross_entropy --label-smoothing 0.1"

train() { # NAME SEED
  local TIMEFORMAT='%R %U %S'
  export SAVE=$OUT/$1-$2 SEED=$2 WORKERS=2 TOKENS=800 BACKEND=$1 EXTRA=
  case $1 in
    single) WORKERS=1 TOKENS=400 BACKEND=legacy_ddp EXTRA="--update-freq 2" ;;
    decoupled) BACKEND=hybrid EXTRA="--hybrid-schedule decoupled" ;;
  esac
  mkdir -p "$SAVE"
  [ -e "$SAVE/score.txt" ] || { time bash "$RECIPE" > "$SAVE/recipe.log" 2>&1; } 2>> "$SAVE/seconds.txt"
}

if [ "${1:-}" != --table ]; then
  bash "$RECIPE" --prepare
  [ $# -gt 0 ] || set -- "${SYSTEMS[@]}"
  for name in "$@"; do
    for seed in $SEEDS; do
      if [ "$name" = single ]; then train "$name" "$seed" & else train "$name" "$seed"; fi
    done
    wait
  done
fi
exec "$ROOT/.venv/bin/python" "$ROOT/benchmarks/translation_quality.py" "$OUT" parallel_quality "${SYSTEMS[@]}"

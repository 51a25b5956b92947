#!/usr/bin/env bash
# Multi30k de-en: hybrid_lstm against fairseq's lstm of the same size and settings, trained until
# an epoch does not improve validation; test2016, detokenised sacreBLEU.
#
#   MULTI30K=folder bash benchmarks/translation_quality.sh
#
# Trains 2 models x 2 seeds, as many at once as there are cores (JOBS=2), one thread each: about
# 4 core-hours in all. Goes on where it was stopped. At the end, and at any time with --table:
# benchmarks/results/translation_quality.json and the table.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OUT=${OUT:-$ROOT/multi30k-run} MULTI30K=${MULTI30K:-} AVERAGE=1 TOKENS=800 WORKERS=1
SEEDS=${SEEDS:-"1 2"}
JOBS=${JOBS:-2}
SIZE="--encoder-embed-dim 256 --encoder-hidden-size 256 --encoder-layers 2 --dropout 0.3
  --share-all-embeddings"
export LSTM="--arch lstm $SIZE --decoder-embed-dim 256 --decoder-hidden-size 256
  --decoder-layers 2 --decoder-out-embed-dim 256" HYBRID="--arch hybrid_lstm $SIZE"
export TRAINING="--optimizer adam --lr 0.002 --clip-norm 1.0 --lr-scheduler fixed --force-anneal 8
  --lr-shrink 0.3 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-epoch 30
  --patience 1"
export RECIPE=$ROOT/examples/translation/multi30k.sh

train() { # NAME SEED
  local options=$HYBRID TIMEFORMAT='%R %U %S'
  [ "$1" = hybrid_lstm ] || options=$LSTM
  export SAVE=$OUT/$1-$2 SEED=$2 MODEL=$options
  mkdir -p "$SAVE"
  [ -e "$SAVE/score.txt" ] || { time bash "$RECIPE" > "$SAVE/recipe.log" 2>&1; } 2>> "$SAVE/seconds.txt"
}

if [ "${1:-}" != --table ]; then
  bash "$RECIPE" --prepare
  export -f train
  for seed in $SEEDS; do printf '%s\n' "lstm $seed" "hybrid_lstm $seed"; done |
    xargs -P "$JOBS" -L 1 bash -c 'train "$0" "$1"'
fi
exec "$ROOT/.venv/bin/python" "$ROOT/benchmarks/translation_quality.py" "$OUT" "$ROOT/benchmarks/results"

#!/usr/bin/env bash
# Multi30k de-en: hybrid_lstm against fairseq's lstm of the same size and settings, trained until
# an epoch does not improve validation; test2016, detokenised sacreBLEU.
#
#   MULTI30K=folder bash benchmarks/translation_quality.sh
#
# With the settings of examples/translation/multi30k.sh. Trains 5 models (fairseq's lstm, plain and with an
# encoder that reads both ways; hybrid_lstm, plain, with --input-feeding, and with --encoder-bidirectional-first) x 2 seeds, two at a time
# (JOBS=2), one thread each: hours. MODELS="lstm hybrid_lstm" picks some. Goes on where it was stopped. At
# the end, and at any time with --table: benchmarks/results/translation_quality.json and the table.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OUT=${OUT:-$ROOT/multi30k-run} MULTI30K=${MULTI30K:-} WORKERS=1
export BACKEND=legacy_ddp # a single worker: it has nothing to do, but hybrid refuses fairseq's lstm
SEEDS=${SEEDS:-"1 2"}
ALL="lstm bidirectional_lstm hybrid_lstm feeding_hybrid_lstm bidirectional_hybrid_lstm"
MODELS=${MODELS:-$ALL}
JOBS=${JOBS:-2}
SIZE="--encoder-embed-dim 256 --encoder-hidden-size 256 --encoder-layers 2 --dropout 0.3
  --share-all-embeddings"
export LSTM="--arch lstm $SIZE --decoder-embed-dim 256 --decoder-hidden-size 256
  --decoder-layers 2 --decoder-out-embed-dim 256" HYBRID="--arch hybrid_lstm $SIZE"
export RECIPE=$ROOT/examples/translation/multi30k.sh

train() { # NAME SEED
  local options TIMEFORMAT='%R %U %S'
  case $1 in
    lstm) options=$LSTM ;;
    bidirectional_lstm) options="$LSTM --encoder-bidirectional --encoder-hidden-size 128" ;; # as wide
    hybrid_lstm) options=$HYBRID ;;
    feeding_hybrid_lstm) options="$HYBRID --input-feeding" ;;
    bidirectional_hybrid_lstm) options="$HYBRID --encoder-bidirectional-first" ;;
  esac
  export SAVE=$OUT/$1-$2 SEED=$2 MODEL=$options
  mkdir -p "$SAVE"
  [ -e "$SAVE/score.txt" ] || { time bash "$RECIPE" > "$SAVE/recipe.log" 2>&1; } 2>> "$SAVE/seconds.txt"
}

if [ "${1:-}" != --table ]; then
  bash "$RECIPE" --prepare
  export -f train
  for seed in $SEEDS; do printf "%s $seed\n" $MODELS; done |
    xargs -P "$JOBS" -L 1 bash -c 'train "$0" "$1"'
fi
# shellcheck disable=SC2086  (a list)
exec "$ROOT/.venv/bin/python" "$ROOT/benchmarks/translation_quality.py" "$OUT" translation_quality $ALL

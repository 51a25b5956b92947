#!/usr/bin/env bash
# How far apart may workers train, and what helps? The tables of docs/averaging.md.
#
#   WIKITEXT2=folder bash benchmarks/averaging_exploration.sh     about 40 minutes on 2 cores
#   bash benchmarks/averaging_exploration.sh --table              from what is there
#
# Four sweeps of examples/language_model/averaging_sweep.sh, all with 5-gram models on a part of WikiText-2
# with 2,000 words, rate 2 √workers (pretraining: one worker, other rates too):
#
#   workers       1 to 16 workers, meetings every 1, 10, 50 updates, both optimizers, both starts
#   minibatches   2 and 16 workers, minibatches of 32 and 512 (beside 128)
#   long          eight times the words, a quarter of WikiText-2; newbob beside exponential
#   pretraining   6 layers, one worker, random and pretrained starts, two seeds, curves
#
# Goes on where it was stopped. Ends with benchmarks/results/averaging_exploration.json.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BASE=${OUT:-$ROOT/averaging-exploration-run}
SWEEP=$ROOT/examples/language_model/averaging_sweep.sh
export OMP_NUM_THREADS=1 VALID_LINES=200 VOCABULARY=2000
NETWORK="--ngram 5 --decoder-embed-dim 64 --hidden-size 128 --dropout 0"
export OPTIMIZERS="sgd ng_sgd" SGD_RATES=2 NG_RATES=2 SCALES=sqrt SEEDS=1 STARTS=rbm
export INTERVALS=10 MINIBATCHES=128 SCHEDULES=exponential BACKENDS=averaging

sweeps() {
  export OUT=$BASE/short TOKENS=200000 POINTS=2 TRAIN_LINES=1836 MODEL="$NETWORK --hidden-layers 2"
  WORKERS="1 2 4 8 16" INTERVALS="10 1 50" bash "$SWEEP"
  STARTS=random WORKERS="1 2 4 8 16" bash "$SWEEP"
  WORKERS="2 16" MINIBATCHES="32 512" bash "$SWEEP"
  export OUT=$BASE/long TOKENS=1600000 POINTS=4 TRAIN_LINES=9180
  WORKERS="2 16" bash "$SWEEP"
  OPTIMIZERS=ng_sgd WORKERS="2 16" SCHEDULES=newbob bash "$SWEEP"
  export OUT=$BASE/pretraining TOKENS=600000 POINTS=6 TRAIN_LINES=1836 MODEL="$NETWORK --hidden-layers 6"
  export OPTIMIZERS=sgd SCALES=none SEEDS="1 2" WORKERS=1 MINIBATCHES=256
  STARTS="random rbm" SGD_RATES=4 bash "$SWEEP"
  STARTS=random SGD_RATES="1 16" bash "$SWEEP"
}

[ "${1:-}" = --table ] || sweeps
exec "$ROOT/.venv/bin/python" "$ROOT/benchmarks/averaging_exploration.py" "$BASE"

#!/usr/bin/env bash
# What does averaging models cost in perplexity, at equal words and at equal time?
#
#   WIKITEXT2=folder bash benchmarks/averaging_quality.sh     about 5 minutes on 2 idle cores
#   bash benchmarks/averaging_quality.sh --table              from what is there
#
# A twentieth of WikiText-2 with its 2,000 most frequent words, the model of averaging.py from a
# pretrained start, one worker and two: fairseq's legacy_ddp and BMUF and our model_averaging, the
# latter two with meetings every 10 updates, with plain and natural-gradient SGD, each at the best of
# its learning rates. All see the same number of words. Trained by
# examples/language_model/averaging_sweep.sh; goes on where it was stopped. At the end:
# benchmarks/results/averaging_quality.json and the table. Time is by benchmarks/results/averaging.json,
# where all systems were measured in turns (averaging.py).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export OUT=${OUT:-$ROOT/averaging-quality-run}
export OPTIMIZERS="sgd ng_sgd" STARTS=rbm WORKERS="1 2" INTERVALS=10 MINIBATCHES=256
export SCHEDULES=exponential SCALES=none BACKENDS="legacy_ddp bmuf averaging" SEEDS=${SEEDS:-1}
export SGD_RATES=${SGD_RATES:-1 4} NG_RATES=${NG_RATES:-1 4}
export TOKENS=${TOKENS:-300000} POINTS=10
export TRAIN_LINES=1836 VALID_LINES=200 VOCABULARY=2000
export MODEL="--ngram 5 --decoder-embed-dim 64 --hidden-layers 2 --hidden-size 128 --dropout 0"
[ "${1:-}" = --table ] || bash "$ROOT/examples/language_model/averaging_sweep.sh"
exec "$ROOT/.venv/bin/python" "$ROOT/benchmarks/averaging_quality.py" "$OUT" "$ROOT/benchmarks/results"

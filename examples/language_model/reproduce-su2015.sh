#!/usr/bin/env bash
# The comparison of Su and Chen (2015), on language models: workers that train apart and average their
# models, with plain and natural-gradient SGD, from random weights and from pretrained ones; words/s,
# speed-up, megabytes sent, test perplexity.
#
#   WIKITEXT2=folder bash examples/language_model/reproduce-su2015.sh   wiki.{train,valid,test}.tokens
#   bash examples/language_model/reproduce-su2015.sh                    downloads them
#   ... --small      the English side of the toy corpus, for a try: about 4 minutes on 2 cores
#   ... --dry-run    prints the commands only
#
# It prints a Markdown table and writes it as $OUT/su2015.json. The same command resumes.
# RUNS="one sgd" picks some of
#
#   one             one worker, SGD
#   sgd             --ddp-backend model_averaging, SGD, random start
#   ng_sgd          the same with --optimizer ng_sgd
#   rbm-sgd         SGD, from layers pretrained as restricted Boltzmann machines
#   rbm-ng_sgd      ng_sgd from the same start
#
# The paper trained acoustic models on speech that cannot be had freely; this is the same method on
# another task: a feed-forward n-gram model. Settings: OUT=folder, WORKERS=2, EPOCHS, SEED=1, INTERVAL=10
# (updates between two averagings), SGD, NG_SGD (optimizer and learning rates), NETWORK, RBM (options of
# fairseq-hybrid-pretrain), EXTRA. STREAMS=32 texts are read by all workers together. Not run on a GPU.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../translation/tools.sh"
source "$ROOT/examples/language_model/series.sh"
arguments su2015 "$@"
RUNS=${RUNS:-one sgd ng_sgd rbm-sgd rbm-ng_sgd}
STREAMS=${STREAMS:-32}
INTERVAL=${INTERVAL:-10}
RBM=${RBM:-}
if [ -n "$SMALL" ]; then
  export EPOCHS=${EPOCHS:-2} LENGTH=${LENGTH:-20}
  NETWORK=${NETWORK:-"--arch feedforward_lm --ngram 4 --decoder-embed-dim 32 --hidden-layers 3 --hidden-size 64 --dropout 0"}
else
  export EPOCHS=${EPOCHS:-5}
  NETWORK=${NETWORK:-"--arch feedforward_lm --ngram 5 --decoder-embed-dim 128 --hidden-layers 4 --hidden-size 256 --dropout 0"}
fi
RATES="--clip-norm 5 --lr-scheduler exponential"
SGD=${SGD:-"--optimizer sgd --lr 2 --final-lr 0.2 --momentum 0.9 $RATES"}
NG_SGD=${NG_SGD:-"--optimizer ng_sgd --lr 0.5 --final-lr 0.05 --momentum 0.9 $RATES"}
export MODEL=$NETWORK
AVERAGED="--averaging-interval $INTERVAL"
START=$OUT/pretrained/pretrained.pt

PRETRAINED=
pretrain() {
  [ -z "$PRETRAINED" ] || return 0
  PRETRAINED=1
  [ ! -e "$START" ] || return 0
  [ -n "$DRY" ] || [ -e "$OUT/data/done" ] ||
    stop "RUNS=\"$RUNS\" begins with pretraining, for which another run prepares the text: put sgd first"
  say "pretraining: the hidden layers as restricted Boltzmann machines, $WORKERS workers"
  [ -n "$DRY" ] || mkdir -p "$OUT/pretrained"
  # shellcheck disable=SC2086  (lists of options)
  logged "$OUT/pretrained/train.log" ' \| pretrain \||pretrained:' \
    fairseq-hybrid-pretrain "$OUT/data" --cpu $NETWORK $RBM --distributed-world-size "$WORKERS" \
    --ddp-backend model_averaging $AVERAGED --num-workers 0 --seed "$SEED" \
    --save-dir "$OUT/pretrained" --log-format simple --log-interval 100
}

one_run() {
  local start=
  case $1 in
    rbm-*) pretrain; start="--finetune-from-model $START" ;;
  esac
  case $1 in *ng_sgd) export OPTIMIZER=$NG_SGD ;; *) export OPTIMIZER=$SGD ;; esac
  case $1 in
    one) train one "SGD" 1 legacy_ddp cross_entropy ;;
    sgd) train sgd "averaging, SGD" "$WORKERS" model_averaging cross_entropy "$AVERAGED" ;;
    ng_sgd) train ng_sgd "averaging, NG-SGD" "$WORKERS" model_averaging cross_entropy "$AVERAGED" ;;
    rbm-sgd) train rbm-sgd "averaging, SGD, pretrained" "$WORKERS" model_averaging cross_entropy "$AVERAGED $start" ;;
    rbm-ng_sgd) train rbm-ng_sgd "averaging, NG-SGD, pretrained" "$WORKERS" model_averaging cross_entropy "$AVERAGED $start" ;;
  esac
}

# shellcheck disable=SC2086  (a list)
known "one sgd ng_sgd rbm-sgd rbm-ng_sgd" $RUNS
[ -z "$SMALL" ] || small_text
for run in $RUNS; do one_run "$run"; done
# shellcheck disable=SC2086
finish su2015 one,sgd $RUNS

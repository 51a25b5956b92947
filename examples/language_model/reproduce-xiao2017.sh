#!/usr/bin/env bash
# The comparison of Xiao, Zhu, Liu and Zhang (2017): a language model by full softmax on one worker, by
# asynchronous SGD, and with sampled words only; words/s, speed-up, megabytes sent, test perplexity.
#
#   WIKITEXT2=folder bash examples/language_model/reproduce-xiao2017.sh   wiki.{train,valid,test}.tokens
#   bash examples/language_model/reproduce-xiao2017.sh                    downloads them
#   ... --small      the English side of the toy corpus, for a try: about 3 minutes on 2 cores
#   ... --dry-run    prints the commands only
#
# It prints a Markdown table and writes it as $OUT/xiao2017.json. The same command resumes.
# RUNS="full sampled" picks some of
#
#   full            one worker, full softmax
#   async-dense     --ddp-backend async, full softmax: the paper's baseline
#   async-sampled   --ddp-backend async, sampled softmax
#   sampled         --ddp-backend sampled, sampled softmax: workers wait for each other
#   one-sampled     one worker, sampled softmax          (not among the usual ones)
#   data            --ddp-backend legacy_ddp, full softmax                (nor this)
#
# STREAMS=32 texts are read side by side, by all workers together: the batch of an update, or with
# async of as many updates as there are workers; the table counts those of worker 0. Perplexities are
# by full softmax over all words.
# Settings: OUT=folder, WORKERS=2, EPOCHS, SEED=1, LENGTH, MODEL, OPTIMIZER, EXTRA as in wikitext2.sh.
# The paper's own text and sizes are not known to us. On CPUs only: not run on a GPU.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../translation/tools.sh"
source "$ROOT/examples/language_model/series.sh"
arguments xiao2017 "$@"
RUNS=${RUNS:-full async-dense async-sampled sampled}
STREAMS=${STREAMS:-32}
SAMPLED=sampled_softmax
if [ -n "$SMALL" ]; then
  export EPOCHS=${EPOCHS:-2} LENGTH=${LENGTH:-20}
  MODEL=${MODEL:-"--arch hybrid_lstm_lm --decoder-embed-dim 64 --decoder-hidden-size 64 --dropout 0.1"}
else
  export EPOCHS=${EPOCHS:-5}
  MODEL=${MODEL:-"--arch hybrid_lstm_lm --decoder-embed-dim 128 --decoder-hidden-size 128
    --decoder-layers 2 --share-decoder-input-output-embed --dropout 0.2"}
fi
OPTIMIZER=${OPTIMIZER:-"--optimizer adam --lr 0.004 --clip-norm 0.25 --lr-scheduler exponential
  --final-lr 0.0004"}
export MODEL OPTIMIZER
[ "$STREAMS" -ge "$WORKERS" ] || stop "STREAMS=$STREAMS are fewer than WORKERS=$WORKERS: give more"

one_run() {
  case $1 in
    full) train full "full softmax" 1 legacy_ddp cross_entropy ;;
    one-sampled) train one-sampled "sampled softmax" 1 legacy_ddp "$SAMPLED" ;;
    data) train data "data parallel" "$WORKERS" legacy_ddp cross_entropy ;;
    async-dense) train async-dense "asynchronous" "$WORKERS" async cross_entropy ;;
    async-sampled) train async-sampled "asynchronous, sampled" "$WORKERS" async "$SAMPLED" ;;
    sampled) train sampled "synchronous, sampled" "$WORKERS" sampled "$SAMPLED" ;;
  esac
}

# shellcheck disable=SC2086  (a list)
known "full async-dense async-sampled sampled one-sampled data" $RUNS
[ -z "$SMALL" ] || small_text
for run in $RUNS; do one_run "$run"; done
# shellcheck disable=SC2086
finish xiao2017 full,async-dense $RUNS

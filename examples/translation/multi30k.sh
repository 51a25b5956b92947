#!/usr/bin/env bash
# Multi30k, German to English: prepare, train, translate test2016, detokenised sacreBLEU.
#
#   MULTI30K=folder bash examples/translation/multi30k.sh      train, valid and test2016 .de and .en
#   bash examples/translation/multi30k.sh                      downloads them (github.com/multi30k)
#   bash examples/translation/multi30k.sh --prepare            text and vocabulary only
#   bash examples/translation/multi30k.sh --dry-run            prints the commands only
#
# As it stands: BLEU 40.5 with SEED=1, 40.3 with SEED=2, in 29 CPU minutes on one core (AMD EPYC,
# torch 2.13.0 CPU; see the table in docs/benchmarks.md). AVERAGE=4 gave 40.5 and 40.4, no difference to
# speak of. Without --encoder-bidirectional-first it is 0.6 BLEU less.
#
# Every step is skipped if its result is there; training goes on from its last checkpoint. Settings
# are environment variables; these are the ones worth changing:
#
#   OUT=folder      everything is written here            WORKERS=1      training processes
#   SAVE=folder     checkpoints, translation and score    BACKEND=legacy_ddp  --ddp-backend
#   SUBWORDS=6000   joint sentencepiece vocabulary        SEED=1
#   TOKENS=800      target words of a batch, all workers together
#   MODEL="--arch hybrid_lstm ..."    all options of the model
#   TRAINING="--optimizer adam ..."   optimizer, learning rates, length of training
#   EXTRA="..."     more fairseq-train options, e.g. "--max-update 200" for a try
#   AVERAGE=1       average so many of the best checkpoints (1: take the best)
#
# fairseq's own model of the same size, for comparison: benchmarks/translation_quality.sh
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
OUT=${OUT:-$ROOT/multi30k-run}
SUBWORDS=${SUBWORDS:-6000}
PREPARED=$OUT/data-$SUBWORDS
SOURCE=de TARGET=en TEST=test2016
source "$ROOT/examples/translation/training.sh"

case "${1:-}" in
  --dry-run) DRY=1 ;;
  --prepare | "") ;;
  *) echo "multi30k.sh: unknown argument $1: use --prepare or --dry-run; settings are variables" >&2; exit 2 ;;
esac

OUT=$OUT MULTI30K=${MULTI30K:-} SUBWORDS=$SUBWORDS STEPS=5 \
  bash "$ROOT/examples/translation/prepare-multi30k.sh" ${DRY:+--dry-run}
TEXT=${MULTI30K:-$OUT/text}

[ "${1:-}" != --prepare ] || exit 0
train_model
translate
score

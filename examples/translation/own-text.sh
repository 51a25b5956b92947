#!/usr/bin/env bash
# Your own parallel text: sentence pieces, training, translation, detokenised sacreBLEU.
#
#   TEXT=folder SOURCE=de TARGET=en bash examples/translation/own-text.sh
#
# The folder has train, valid and test .de and .en, plain text in UTF-8, a sentence per line, line n of one the
# translation of line n of the other.
#
#   --prepare    stops before training        --train-on   goes on with a training that has ended
#   --dry-run    prints the commands only
#
# Every step is skipped if its result is there; a training that was stopped goes on from its last checkpoint.
# Settings are environment variables:
#
#   OUT=own-text-run                 everything is written here
#   SAVE=$OUT/model                  checkpoints, log, translation and score
#   SUBWORDS=6000                    joint sentencepiece vocabulary
#   TOKENS=800                       target pieces of a batch, all workers together
#   CLEAN="LONGEST RATIO"            pairs with more pieces, or so many times longer on a side, are left out
#                                    ("799 1000": what fits into a worker's batch)
#   WORKERS=1                        training processes; one with a thread per core is as fast as several
#   BACKEND=legacy_ddp               --ddp-backend; hybrid between machines, or if memory is short
#   SEED=1                           of random numbers
#   MODEL="--arch hybrid_lstm ..."   all options of the model (2 layers of 256)
#   TRAINING="--optimizer adam ..."  optimizer, learning rates, length of training
#   EXTRA="..."                      more fairseq-train options, e.g. "--max-update 200" for a try
#   AVERAGE=1                        average so many of the best checkpoints (1: take the best)
#
# The learning rate halves when an epoch does not improve validation; training ends when five in a row do not,
# so it takes as long as your text needs. With 4,000 pairs that was 25 epochs, 6 CPU minutes for each worker of
# two. The model suits some ten thousand pairs. For more text take a larger model, batch and vocabulary:
#
#   SUBWORDS=16000 TOKENS=4000 MODEL="--arch hybrid_lstm_iwslt --share-all-embeddings" ...
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
NAME=own-text STEPS=5 USUAL_SUBWORDS=6000
ONLY_PREPARE=
case "${1:-}" in
  --prepare) ONLY_PREPARE=1; shift ;;
  --train-on) TRAIN_ON=1; shift ;;
esac
FOLDER=${TEXT:-}
for name in TEXT SOURCE TARGET; do
  [ -n "${!name:-}" ] || stop "$name is not set: TEXT=folder SOURCE=de TARGET=en bash $0"
done
source "$ROOT/examples/translation/preparing.sh"
arguments FOLDER "$@"
LOCAL=TEXT
WORKERS=${WORKERS:-1} TOKENS=${TOKENS:-800}
whole_numbers WORKERS TOKENS
all_cores
# what a batch of one worker holds, an end of sentence included; fairseq takes up to 1024
LONGEST=$((TOKENS / WORKERS - 1))
[ "$LONGEST" -le 1022 ] || LONGEST=1022
[ "$LONGEST" -ge 20 ] || stop "TOKENS=$TOKENS for WORKERS=$WORKERS leaves no room for a sentence: give more"
CLEAN=${CLEAN:-"$LONGEST 1000"}

get_text
binarise
[ -z "$ONLY_PREPARE" ] || exit 0
TRAINING=${TRAINING:-"--optimizer adam --lr 0.002 --clip-norm 1.0 --lr-scheduler reduce_lr_on_plateau
  --lr-shrink 0.5 --max-epoch 100 --patience 5
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1"}
source "$ROOT/examples/translation/training.sh"
train_model
translate
score
[ -z "$DRY" ] || exit 0
TRANSLATE="$(program fairseq-hybrid-translate) $(short "$CHECKPOINT")"
say "go on"
next "translate a sentence" "$TRANSLATE 'A sentence.'"
next "translate a file" "$TRANSLATE --input $(short "$TEXT/test.$SOURCE") --output test.$TARGET"
next "see how it went" "$(program fairseq-hybrid-report) $(short "$SAVE")"
next "take it to machines without torch" "${TRANSLATE/-translate/-export} exported"
next "train on" "$(again TEXT SOURCE TARGET OUT SAVE SUBWORDS TOKENS CLEAN WORKERS BACKEND SEED MODEL TRAINING AVERAGE) --train-on"

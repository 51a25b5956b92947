#!/usr/bin/env bash
# Your own parallel text: sentence pieces, training, translation, detokenised sacreBLEU.
#
#   TEXT=folder SOURCE=de TARGET=en bash examples/translation/own-text.sh
#
# The folder has train, valid and test .de and .en, plain text, a sentence per line, line n of one the
# translation of line n of the other. --prepare stops before training; --dry-run prints the commands.
#
#   OUT=folder      everything is written here (own-text-run)
#   SUBWORDS=6000   joint sentencepiece vocabulary
#
# and the settings of multi30k.sh: WORKERS, BACKEND, SEED, TOKENS, MODEL, TRAINING, EXTRA, AVERAGE. The
# learning rate halves when an epoch does not improve validation; training ends when five in a row do not, so
# it takes as long as your text needs. With 4,000 pairs that was 25 epochs, 6 CPU minutes for each worker of
# two. The model suits some ten thousand pairs. For more text take a larger model, batch and vocabulary:
#
#   SUBWORDS=16000 TOKENS=4000 MODEL="--arch hybrid_lstm_iwslt --share-all-embeddings" ...
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
NAME=own-text STEPS=5 USUAL_SUBWORDS=6000
ONLY_PREPARE=
[ "${1:-}" != --prepare ] || { ONLY_PREPARE=1; shift; }
FOLDER=${TEXT:-}
for name in TEXT SOURCE TARGET; do
  [ -n "${!name:-}" ] || {
    echo "own-text.sh: $name is not set: TEXT=folder SOURCE=de TARGET=en bash $0" >&2
    exit 2
  }
done
source "$ROOT/examples/translation/preparing.sh"
arguments FOLDER "$@"
LOCAL=TEXT
WORKERS=${WORKERS:-1} TOKENS=${TOKENS:-800}
for name in WORKERS TOKENS; do
  [[ ${!name} =~ ^[1-9][0-9]*$ ]] || stop "$name=${!name} is not a whole number above 0: give one such as 2"
done
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
say "go on: a sentence, a file, an export for machines without torch"
echo "  $TRANSLATE 'A sentence.'"
echo "  $TRANSLATE --input $(short "$TEXT/test.$SOURCE") --output test.$TARGET"
echo "  ${TRANSLATE/-translate/-export} exported"

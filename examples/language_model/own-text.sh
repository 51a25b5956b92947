#!/usr/bin/env bash
# A language model of your own text: sentence pieces, training, perplexity.
#
#   TEXT=folder bash examples/language_model/own-text.sh
#
# The folder has train.txt, valid.txt and test.txt, plain text in UTF-8. The model reads it as a stream, from
# line to line, so lines may be of any length and their order counts.
#
#   --prepare    stops before training        --train-on   goes on with a training that has ended
#   --dry-run    prints the commands only
#
# Every step is skipped if its result is there; a training that was stopped goes on from its last checkpoint.
# Settings are environment variables:
#
#   OUT=own-language-model-run         everything is written here
#   SAVE=$OUT/model                    checkpoints, log and perplexity
#   SUBWORDS=8000                      sentencepiece vocabulary
#   WORKERS=...                        training processes (one for each core, up to 4)
#   BACKEND=sampled                    --ddp-backend; with a CRITERION of all words legacy_ddp
#   STREAMS=32                         places at which the text is read at once, by all workers together
#   LENGTH=35                          pieces that gradients go back
#   SEED=1                             of random numbers
#   MODEL="--arch hybrid_lstm_lm ..."  all options of the model (one layer of 512)
#   CRITERION=sampled_softmax          the loss in training, with its options
#   TRAINING="--optimizer adam ..."    optimizer, learning rates, length of training
#   EXTRA="..."                        more fairseq-train options, e.g. "--max-update 200" for a try
#
# The learning rate halves when an epoch does not improve validation; training ends when three in a row do
# not, so it takes as long as your text needs. The perplexity is that of a piece: only models with the same pieces compare.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../translation/tools.sh"
ONLY_PREPARE=
for word in "$@"; do
  case $word in
    --prepare) ONLY_PREPARE=1 ;;
    --train-on) TRAIN_ON=1 ;;
    --dry-run) DRY=1 ;;
    *) stop "unknown argument $word: use --prepare, --train-on or --dry-run; settings are variables" ;;
  esac
done
[ -n "${TEXT:-}" ] || stop "TEXT is not set: TEXT=folder bash $0"
OUT=${OUT:-$ROOT/own-language-model-run}
SAVE=${SAVE:-$OUT/model}
CORES=$(cores)
SUBWORDS=${SUBWORDS:-8000} STREAMS=${STREAMS:-32} LENGTH=${LENGTH:-35} SEED=${SEED:-1}
WORKERS=${WORKERS:-$((CORES < 4 ? CORES : 4))}
whole_numbers SUBWORDS STREAMS LENGTH WORKERS
[ "$STREAMS" -ge "$WORKERS" ] || stop "STREAMS=$STREAMS are fewer than WORKERS=$WORKERS: give more"
MODEL=${MODEL:-"--arch hybrid_lstm_lm --decoder-embed-dim 512 --decoder-hidden-size 512
  --decoder-layers 1 --share-decoder-input-output-embed --dropout 0.4"}
CRITERION=${CRITERION:-sampled_softmax}
TRAINING=${TRAINING:-"--optimizer adam --lr 0.003 --clip-norm 0.25 --lr-scheduler reduce_lr_on_plateau
  --lr-shrink 0.5 --max-epoch 50 --patience 3"}
EXTRA=${EXTRA:-}
DATA=$OUT/data-$SUBWORDS
PREPARED=$DATA/bin BATCH=$((STREAMS / WORKERS))
source "$ROOT/examples/language_model/training.sh"

say "1/4  text"
for split in train valid test; do
  [ -n "$DRY" ] || [ -e "$TEXT/$split.txt" ] ||
    stop "TEXT=$TEXT has no $split.txt: give a folder with train.txt, valid.txt and test.txt"
done
run python "$PIECES" check 0 "$TEXT" txt train,valid,test
if [ -z "$DRY" ]; then
  CHECKSUM_OF_TEXT=$(cat "$TEXT"/{train,valid,test}.txt | cksum)
  mkdir -p "$DATA" "$SAVE"
  same_settings "$DATA" "another OUT" CHECKSUM_OF_TEXT
  [ -n "$ONLY_PREPARE" ] ||
    same_settings "$SAVE" "another SAVE" PREPARED MODEL CRITERION TRAINING LENGTH STREAMS SEED
fi
echo "  $TEXT"

say "2/4  sentencepiece ($SUBWORDS pieces) and fairseq-preprocess"
if [ ! -e "$DATA/done" ]; then
  run mkdir -p "$DATA/encoded"
  run python "$PIECES" train "$DATA/pieces" "$SUBWORDS" "$TEXT/train.txt"
  for split in train valid test; do
    run python "$PIECES" encode "$DATA/pieces" "$TEXT/$split.txt" "$DATA/encoded/$split"
  done
  run rm -rf "$PREPARED"
  logged "$DATA/prepare.log" 'sents,' \
    fairseq-preprocess --only-source --trainpref "$DATA/encoded/train" \
    --validpref "$DATA/encoded/valid" --testpref "$DATA/encoded/test" --destdir "$PREPARED" --workers 1
  run touch "$DATA/done"
fi
[ -z "$ONLY_PREPARE" ] || exit 0

say "3/4  fairseq-train: until three epochs in a row do not improve validation"
train_model "$TRAINING"

say "4/4  fairseq-eval-lm: perplexity of a piece, by full softmax"
perplexity valid test
[ -z "$DRY" ] || exit 0

say "go on"
SCORE="$(program fairseq-hybrid-score) $(short "$SAVE/checkpoint_best.pt")"
next "score a sentence" "echo 'A sentence.' | $SCORE"
next "score a text, read as one" "$SCORE $(short "$TEXT/test.txt") --running --total"
next "see how it went" "$(program fairseq-hybrid-report) $(short "$SAVE")"
next "take it to machines without torch" "$(program fairseq-hybrid-export) $(short "$SAVE/checkpoint_best.pt") exported"
next "train on" "$(again TEXT OUT SAVE SUBWORDS WORKERS BACKEND STREAMS LENGTH SEED MODEL CRITERION TRAINING) --train-on"

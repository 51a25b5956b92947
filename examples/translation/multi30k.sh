#!/usr/bin/env bash
# Multi30k, German to English: prepare, train, translate test2016, detokenised sacreBLEU.
#
#   MULTI30K=folder bash examples/translation/multi30k.sh      train, valid and test2016 .de and .en
#   bash examples/translation/multi30k.sh                      downloads them (github.com/multi30k)
#   bash examples/translation/multi30k.sh --prepare            text and vocabulary only
#   bash examples/translation/multi30k.sh --dry-run            prints the commands only
#
# As it stands: BLEU 39.4 with SEED=1, 38.8 with SEED=2, in about 40 minutes on one core (AMD EPYC,
# torch 2.13.0 CPU; see the table in the README). WORKERS=2 trains on two, by --ddp-backend hybrid.
#
# Every step is skipped if its result is there; training goes on from its last checkpoint. Settings
# are environment variables; these are the ones worth changing:
#
#   OUT=folder      everything is written here            WORKERS=1      training processes
#   SAVE=folder     checkpoints, translation and score    BACKEND=...    --ddp-backend
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
SAVE=${SAVE:-$OUT/model}
SUBWORDS=${SUBWORDS:-6000}
SEED=${SEED:-1}
WORKERS=${WORKERS:-1}
BACKEND=${BACKEND:-hybrid}
AVERAGE=${AVERAGE:-1}
MODEL=${MODEL:-"--arch hybrid_lstm --encoder-embed-dim 256 --encoder-hidden-size 256
  --encoder-layers 2 --share-all-embeddings --dropout 0.3"}
TOKENS=${TOKENS:-800}
TRAINING=${TRAINING:-"--optimizer adam --lr 0.002 --clip-norm 1.0 --lr-scheduler fixed
  --force-anneal 8 --lr-shrink 0.3 --max-epoch 30 --patience 1
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1"}
EXTRA=${EXTRA:-}
PREPARED=$OUT/data-$SUBWORDS

case "${1:-}" in
  --dry-run) DRY=1 ;;
  --prepare | "") ;;
  *) echo "multi30k.sh: unknown argument $1: use --prepare or --dry-run; settings are variables" >&2; exit 2 ;;
esac

[ -n "$DRY" ] || mkdir -p "$OUT" "$SAVE"

OUT=$OUT MULTI30K=${MULTI30K:-} SUBWORDS=$SUBWORDS STEPS=5 \
  bash "$ROOT/examples/translation/prepare-multi30k.sh" ${DRY:+--dry-run}
MULTI30K=${MULTI30K:-$OUT/text}

[ "${1:-}" != --prepare ] || exit 0

say "3/5  fairseq-train"
started=$(date +%s)
if [ ! -e "$SAVE/trained" ]; then
  # shellcheck disable=SC2086  (MODEL, TRAINING and EXTRA are lists of options)
  logged "$SAVE/train.log" ' \| (train|valid) \||Loaded checkpoint|early stop' \
    fairseq-train "$PREPARED/bin" --user-dir "$PLUGIN" --cpu $MODEL $TRAINING \
    --distributed-world-size "$WORKERS" --ddp-backend "$BACKEND" --num-workers 0 \
    --max-tokens "$((TOKENS / WORKERS))" --seed "$SEED" \
    --save-dir "$SAVE" --no-epoch-checkpoints --keep-best-checkpoints "$AVERAGE" \
    --log-format simple --log-interval 100 $EXTRA
  run touch "$SAVE/trained"
fi
seconds=$(($(date +%s) - started))

CHECKPOINT=$SAVE/checkpoint_best.pt
if [ "$AVERAGE" -gt 1 ]; then
  CHECKPOINT=$SAVE/checkpoint_average.pt
  say "4/5  average of the $AVERAGE best checkpoints, then fairseq-generate with beam 5"
  if [ -n "$DRY" ]; then
    echo "python -  # averages $SAVE/checkpoint.best_loss_*.pt into $CHECKPOINT"
  elif [ ! -e "$CHECKPOINT" ]; then
    PYTHONPATH=$ROOT python - "$CHECKPOINT" "$SAVE"/checkpoint.best_loss_*.pt <<'PYTHON'
import sys

import torch

from fairseq_hybrid.compat import checkpoints

target, *paths = sys.argv[1:]
states = [checkpoints.load(path, map_location="cpu") for path in paths]
average = states[0]
for name, weight in average["model"].items():
    mean = sum(state["model"][name].double() for state in states) / len(states)
    average["model"][name] = mean.to(weight.dtype)
average.pop("last_optimizer_state", None)
torch.save(average, target)
print(f"  {len(states)} checkpoints -> {target}")
PYTHON
  fi
else
  say "4/5  fairseq-generate with beam 5"
fi
logged "$SAVE/generate.log" 'Translated' \
  fairseq-generate "$PREPARED/bin" --user-dir "$PLUGIN" --cpu --gen-subset test \
  --path "$CHECKPOINT" --beam 5 --max-len-a 1.5 --max-len-b 10 --batch-size 64 \
  --remove-bpe sentencepiece --results-path "$SAVE/output"

say "5/5  detokenised sacreBLEU, test2016"
HYPOTHESIS=$SAVE/test2016.hypothesis.en
if [ -n "$DRY" ]; then
  echo "hypotheses $SAVE/output/generate-test.txt > $HYPOTHESIS"
else
  hypotheses "$SAVE/output/generate-test.txt" > "$HYPOTHESIS"
fi
SCORE=$SAVE/score.txt
[ -z "$DRY" ] || SCORE=/dev/null
run sacrebleu "$MULTI30K/test2016.en" -i "$HYPOTHESIS" -m bleu -f text -w 2 | tee "$SCORE"
[ -n "$DRY" ] || echo "training took $seconds s this time; model: $CHECKPOINT, output: $HYPOTHESIS"

#!/usr/bin/env bash
# Is the toy corpus hard enough to tell a working model from a broken one?
#
#   bash benchmarks/corpus_difficulty.sh        after `make quickstart`; about 6 minutes on 2 cores
#
# Prints test BLEU (beam 5) of the quick start's model, of fairseq's lstm without attention trained
# with the same settings for as many updates, and of hybrid_lstm as it is before training.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../examples/translation/tools.sh"
RUN=${RUN:-$ROOT/quickstart-run}
OUT=${OUT:-$RUN/difficulty}
UPDATES=${UPDATES:-850}
[ -e "$RUN/test.hypothesis.en" ] || { echo "no quick start in $RUN: make quickstart first" >&2; exit 2; }
mkdir -p "$OUT"

train() { # NAME OPTIONS...
  local name=$1
  shift
  fairseq-train "$RUN/data" --user-dir "$PLUGIN" --cpu "$@" --share-all-embeddings \
    --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 192 --decoder-embed-dim 192 \
    --dropout 0 --distributed-world-size 2 --ddp-backend legacy_ddp --num-workers 0 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr-scheduler polynomial_decay \
    --warmup-updates 100 --total-num-update "$UPDATES" --end-learning-rate 0.00005 \
    --criterion cross_entropy --max-tokens 1500 --seed 1 \
    --save-dir "$OUT/$name" --no-epoch-checkpoints > "$OUT/$name.log" 2>&1
  fairseq-generate "$RUN/data" --user-dir "$PLUGIN" --cpu --gen-subset test --beam 5 \
    --path "$OUT/$name/checkpoint_best.pt" --max-tokens 4000 --max-len-a 1 --max-len-b 20 \
    --remove-bpe sentencepiece --results-path "$OUT/$name" >> "$OUT/$name.log" 2>&1
  hypotheses "$OUT/$name/generate-test.txt" > "$OUT/$name.en"
}

score() { # LABEL HYPOTHESES
  printf '%-32s %s\n' "$1" "$(sacrebleu "$RUN/text/test.en" -i "$2" -m bleu -b -w 1)"
}

train without_attention --arch lstm --decoder-attention 0 --encoder-bidirectional \
  --encoder-hidden-size 128 --decoder-hidden-size 256 --decoder-out-embed-dim 192 \
  --lr 0.005 --max-update "$UPDATES"
train untrained --arch hybrid_lstm --encoder-bidirectional-first \
  --encoder-hidden-size 256 --decoder-hidden-size 256 --lr 1e-9 --end-learning-rate 1e-9 --max-update 1

score "quick start" "$RUN/test.hypothesis.en"
score "lstm without attention" "$OUT/without_attention.en"
score "hybrid_lstm, untrained" "$OUT/untrained.en"

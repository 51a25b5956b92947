#!/usr/bin/env bash
# From nothing to a scored translation model on 2 CPU workers, German to English.
#
#   make quickstart                                  (sets up .venv, then runs this)
#   OUT=/tmp/try WORKERS=1 bash examples/translation/quickstart.sh
#
# The text is made by `python examples/toy_corpus`, so nothing is downloaded. Every step is
# skipped if its result is there; training resumes from its last checkpoint. The learning rate
# reaches its end with the last update, so what was begun with other settings wants another OUT.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
OUT=${OUT:-$ROOT/quickstart-run}
WORKERS=${WORKERS:-2}
UPDATES=${UPDATES:-1000}
SENTENCES=${SENTENCES:-30000}
SUBWORDS=${SUBWORDS:-4000}
TOKENS=${TOKENS:-3000} # pieces of a batch, all workers together
SEED=${SEED:-1}
BACKEND=${BACKEND:-hybrid}

mkdir -p "$OUT"
same_settings "$OUT" "another OUT" SENTENCES SUBWORDS TOKENS UPDATES SEED

say "1/5  text: $SENTENCES sentence pairs of the toy corpus"
[ -e "$OUT/text/done" ] || {
  python "$TOY_CORPUS" "$OUT/text" --seed "$SEED" --train "$SENTENCES" 2>> "$OUT/prepare.log"
  touch "$OUT/text/done"
}
paste -d '\n' <(head -n 2 "$OUT/text/train.de" | sed 's/^/  de: /') \
              <(head -n 2 "$OUT/text/train.en" | sed 's/^/  en: /')

say "2/5  sentencepiece: $SUBWORDS pieces for both languages"
python "$PIECES" train "$OUT/pieces" "$SUBWORDS" --split-digits "$OUT/text/train.de" "$OUT/text/train.en" \
  2>> "$OUT/prepare.log"
mkdir -p "$OUT/encoded"
for split in train valid test; do
  for lang in de en; do
    python "$PIECES" encode "$OUT/pieces" "$OUT/text/$split.$lang" "$OUT/encoded/$split.$lang"
  done
done
head -n 1 "$OUT/encoded/train.de" | sed 's/^/  de: /'

say "3/5  fairseq-preprocess"
[ -e "$OUT/data/done" ] || {
  rm -rf "$OUT/data"
  logged "$OUT/prepare.log" 'sents,' \
    fairseq-preprocess --source-lang de --target-lang en --joined-dictionary \
    --trainpref "$OUT/encoded/train" --validpref "$OUT/encoded/valid" \
    --testpref "$OUT/encoded/test" --destdir "$OUT/data" --workers 2
  touch "$OUT/data/done"
}

say "4/5  fairseq-train: hybrid_lstm, $UPDATES updates, $WORKERS workers, $BACKEND (log: $OUT/train.log)"
started=$(date +%s)
# at its last update fairseq would do one more on every restart: a finished training is left alone
[ -e "$OUT/checkpoints/trained-$UPDATES" ] || watched "$OUT/train.log" --updates "$UPDATES" -- \
  fairseq-train "$OUT/data" --user-dir "$PLUGIN" --cpu \
  --arch hybrid_lstm --encoder-bidirectional-first --share-all-embeddings \
  --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 192 --encoder-hidden-size 256 \
  --dropout 0 --criterion cross_entropy \
  --distributed-world-size "$WORKERS" --ddp-backend "$BACKEND" --num-workers 0 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
  --lr 0.005 --lr-scheduler polynomial_decay --warmup-updates 100 \
  --total-num-update "$UPDATES" --end-learning-rate 0.00005 \
  --max-tokens "$((TOKENS / WORKERS))" --max-update "$UPDATES" --seed "$SEED" \
  --save-dir "$OUT/checkpoints" --save-interval-updates 250 --keep-interval-updates 1 \
  --save-interval 1000 --validate-interval 1000 --no-epoch-checkpoints --log-format simple --log-interval 10
touch "$OUT/checkpoints/trained-$UPDATES"
seconds=$(($(date +%s) - started))

say "5/5  fairseq-generate: beam 5 on the test set"
logged "$OUT/generate.log" 'Translated' \
  fairseq-generate "$OUT/data" --user-dir "$PLUGIN" --cpu --gen-subset test \
  --path "$OUT/checkpoints/checkpoint_best.pt" --beam 5 --max-tokens 4000 \
  --remove-bpe sentencepiece --results-path "$OUT/output"
hypotheses "$OUT/output/generate-test.txt" > "$OUT/test.hypothesis.en"

say "samples"
for line in 1 2 3 4; do
  for part in "source:text/test.de" "output:test.hypothesis.en" "wanted:text/test.en"; do
    printf '  %s  %s\n' "${part%%:*}" "$(sed -n "${line}p" "$OUT/${part#*:}")"
  done
  echo
done

say "result"
sacrebleu "$OUT/text/test.en" -i "$OUT/test.hypothesis.en" -m bleu -f text -w 2 | sed 's/^/  /'
python "$ROOT/examples/translation/copying.py" "$OUT/text/test.de" "$OUT/text/test.en" \
  "$OUT/test.hypothesis.en" | sed 's/^/  /'
speed=$(sed -nE 's/.*\| train_inner \|.* wps=([0-9.]+),.*/\1/p' "$OUT/train.log" |
  awk '{ sum += $1 } END { if (NR) printf "%.0f", sum / NR; else print "?" }')
echo "  training: ${seconds} s this time, $speed target tokens/s on $WORKERS workers"

say "go on: a sentence of your own, and your own text (a folder with train, valid and test .de and .en)"
echo "  $(program fairseq-hybrid-translate) $(short "$OUT") 'Herr Richter hat mich gesucht.'"
echo
echo "  TEXT=$(short "$OUT/text") SOURCE=de TARGET=en \\"
echo "    bash $(short "$ROOT/examples/translation/own-text.sh")"

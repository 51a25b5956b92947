# Train, translate and score: the steps after preparing.sh; sourced after tools.sh, not run.
#
# Wants OUT, PREPARED, SOURCE, TARGET, TEST and TEXT (the folder with $TEST.$TARGET) when it is
# called; the variables below are the user's to set. Every step is skipped if its result is there, and a
# training goes on from its last checkpoint.

SAVE=${SAVE:-$OUT/model}
SEED=${SEED:-1}
WORKERS=${WORKERS:-1}
BACKEND=${BACKEND:-legacy_ddp} # on one machine as fast as hybrid, and simpler
AVERAGE=${AVERAGE:-1}
MODEL=${MODEL:-"--arch hybrid_lstm --encoder-embed-dim 256 --encoder-hidden-size 256
  --encoder-layers 2 --encoder-bidirectional-first --share-all-embeddings --dropout 0.3"}
TOKENS=${TOKENS:-800}
TRAINING=${TRAINING:-"--optimizer adam --lr 0.002 --clip-norm 1.0 --lr-scheduler fixed
  --force-anneal 8 --lr-shrink 0.3 --max-epoch 30 --patience 1
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1"}
EXTRA=${EXTRA:-}

train_model() {
  local started
  say "3/5  fairseq-train"
  if [ -z "$DRY" ]; then
    mkdir -p "$SAVE"
    same_settings "$SAVE" "another SAVE" PREPARED MODEL TRAINING TOKENS SEED
  fi
  ! finished "$SAVE" || return 0
  started=$(date +%s)
  # shellcheck disable=SC2086  (MODEL, TRAINING and EXTRA are lists of options)
  watched "$SAVE/train.log" -- \
    fairseq-train "$PREPARED/bin" --user-dir "$PLUGIN" --cpu $MODEL $TRAINING \
    --distributed-world-size "$WORKERS" --ddp-backend "$BACKEND" --num-workers 0 \
    --max-tokens "$((TOKENS / WORKERS))" --seed "$SEED" \
    --save-dir "$SAVE" --save-on-exit --no-epoch-checkpoints --keep-best-checkpoints "$AVERAGE" \
    --log-format simple --log-interval 20 $EXTRA
  [ -n "$DRY" ] || printf '%s\n' "$EXTRA" > "$SAVE/trained"
  [ -n "$DRY" ] || echo "  training took $(($(date +%s) - started)) s this time"
}

# average_checkpoints: sets CHECKPOINT to the best one, or to the mean of the AVERAGE best
average_checkpoints() {
  CHECKPOINT=$SAVE/checkpoint_best.pt
  [ "$AVERAGE" -gt 1 ] || return 0
  CHECKPOINT=$SAVE/checkpoint_average.pt
  if [ -n "$DRY" ]; then
    run python "$ROOT/examples/translation/average.py" "$CHECKPOINT" "$SAVE/checkpoint.best_loss_*.pt"
  elif [ ! -e "$CHECKPOINT" ] || [ -n "$TRAIN_ON" ]; then
    python "$ROOT/examples/translation/average.py" "$CHECKPOINT" "$SAVE"/checkpoint.best_loss_*.pt
  fi
}

translate() {
  say "4/5  fairseq-generate with beam 5"
  average_checkpoints
  logged "$SAVE/generate.log" 'Translated' \
    fairseq-generate "$PREPARED/bin" --user-dir "$PLUGIN" --cpu --gen-subset test \
    --source-lang "$SOURCE" --target-lang "$TARGET" \
    --path "$CHECKPOINT" --beam 5 --max-len-a 1.5 --max-len-b 10 --batch-size 64 \
    --required-batch-size-multiple 1 --remove-bpe sentencepiece --results-path "$SAVE/output"
}

score() {
  local hypothesis=$SAVE/$TEST.hypothesis.$TARGET score=$SAVE/score.txt
  say "5/5  detokenised sacreBLEU, $TEST"
  if [ -n "$DRY" ]; then
    echo "hypotheses $SAVE/output/generate-test.txt > $hypothesis"
    score=/dev/null
  else
    hypotheses "$SAVE/output/generate-test.txt" > "$hypothesis"
  fi
  run sacrebleu "$TEXT/$TEST.$TARGET" -i "$hypothesis" -m bleu -f text -w 2 | tee "$score"
  [ -n "$DRY" ] || echo "model: $CHECKPOINT, output: $hypothesis"
}

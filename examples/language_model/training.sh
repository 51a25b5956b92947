# Train a language model and score it: the last steps of own-text.sh and wikitext2.sh; sourced after
# tools.sh, not run.
#
# Wants PREPARED (of fairseq-preprocess), SAVE, MODEL, CRITERION, LENGTH, WORKERS, SEED, EXTRA and BATCH, the
# streams of a worker. A training that has ended is left alone, one that was stopped goes on from its last
# checkpoint.

# Only sampled_softmax has gradients of few rows, which is what `sampled` is for.
backend() { case $CRITERION in sampled_softmax*) echo sampled ;; *) echo legacy_ddp ;; esac; }

# train_model OPTIONS [--epochs N]: with these options of optimizer and schedule
train_model() {
  local options=$1 started
  shift
  ! finished "$SAVE" || return 0
  started=$(date +%s)
  # shellcheck disable=SC2086  (MODEL, CRITERION, EXTRA and the options are lists)
  watched "$SAVE/train.log" "$@" -- \
    fairseq-train "$PREPARED" --user-dir "$PLUGIN" --cpu $MODEL \
    --task streamed_language_modeling --tokens-per-sample "$LENGTH" --batch-size "$BATCH" \
    --distributed-world-size "$WORKERS" --ddp-backend "${BACKEND:-$(backend)}" --num-workers 0 \
    $options --criterion $CRITERION --seed "$SEED" --save-dir "$SAVE" --save-on-exit \
    --no-epoch-checkpoints --log-format simple --log-interval 20 $EXTRA
  [ -n "$DRY" ] || printf '%s\n' "$EXTRA" > "$SAVE/trained"
  [ -n "$DRY" ] || echo "  training took $(($(date +%s) - started)) s this time"
}

# perplexity SUBSET...: by full softmax, the state carried through the whole text
perplexity() {
  local subset
  for subset in "$@"; do
    echo "  $subset"
    logged "$SAVE/$subset.log" 'Perplexity' \
      fairseq-eval-lm "$PREPARED" --user-dir "$PLUGIN" --cpu --gen-subset "$subset" \
      --path "$SAVE/checkpoint_best.pt" --task streamed_language_modeling \
      --tokens-per-sample 200 --batch-size 1
  done
}

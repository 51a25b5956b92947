#!/usr/bin/env bash
# The systems of Ono, Utiyama and Sumita (2019) side by side: tokens/s, speed-up and BLEU of one
# device, data parallelism, model parallelism and hybrid parallelism, at the same global batch.
#
#   bash examples/translation/reproduce-ono2019.sh --small      the toy corpus, 2 workers: about 10
#                                                               minutes on 2 cores, BLEU about 40 (input
#                                                               feeding may not get there in its updates)
#   MULTI30K=folder bash ... --multi30k                         Multi30k (or by download), 2 workers
#   DEVICES=4 bash ... --wmt14 --gpu      WMT14 en-de on 4 GPUs: never run, see below; also --wmt17
#   ... --dry-run                         prints the commands only
#
# It prints a Markdown table and writes the same as $OUT/ono2019.json. Every step is skipped if its
# result is there and a training goes on from its last checkpoint, so the same command resumes, and
# SYSTEMS="single hybrid" picks some of
#
#   single-feeding  single          one device, with and without --input-feeding
#   data    data-feeding            --ddp-backend legacy_ddp
#   model   model-feeding           --ddp-backend model_parallel
#   hybrid-feeding  hybrid          --ddp-backend hybrid
#
# The paper's speed-ups are over one device with input feeding; they join what parallelism gives to
# what leaving input feeding out gives. The table has both ratios: to `single-feeding` and to `single`.
# An update is the same everywhere: N workers take a batch of --max-tokens each, one device N batches
# (--update-freq N), the very same ones. Systems run one after the other, so on a machine that does
# other things as well, speeds are rough; benchmarks/translation_parallel.py measures them in turns.
#
# Settings: OUT=folder, DEVICES=2, SEED=1, SUBWORDS, MODEL, TRAINING, TOKENS (per worker), EXTRA (more
# fairseq-train options). The sizes for WMT are from memory of the paper, not checked against it.
#
# Several machines. fairseq-train starts DEVICES workers here. Under Slurm, from within an allocation
# and with a shared folder, the same script starts them everywhere:
#
#   DEVICES=4 LAUNCH="srun --nodes 2 --ntasks 4" EXTRA="--distributed-port 9218" bash ... --multi30k
#
# Without Slurm take a training command from --dry-run, leave --distributed-world-size out, and start it on
# every machine with torchrun (HOST: the first one; docs/hybrid.md says which workers should be near):
#
#   torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr HOST --master-port 29500 \
#       $(which fairseq-train) DATA --user-dir fairseq_hybrid ...            (--node-rank 1 on the other)
#
# --gpu leaves --cpu out and gives every worker a GPU (nccl). NOT RUN ON A GPU: nothing here was.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
SIZE=
GPU=
HERE=$ROOT/examples/translation

for word in "$@"; do
  case $word in
    --dry-run) DRY=1 ;;
    --gpu) GPU=1 ;;
    --small | --multi30k | --wmt14 | --wmt17)
      [ -z "$SIZE" ] || stop "$word and --$SIZE: choose one size"
      SIZE=${word#--} ;;
    *) stop "unknown argument $word: use --small, --multi30k, --wmt14 or --wmt17, --gpu, --dry-run; settings are variables" ;;
  esac
done

SEED=${SEED:-1}
EXTRA=${EXTRA:-}
LAUNCH=${LAUNCH:-}
SYSTEMS=${SYSTEMS:-single-feeding single data model hybrid-feeding hybrid}
ADAM="--optimizer adam --clip-norm 1.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1"
case $SIZE in
  small)
    export SENTENCES=${SENTENCES:-16000} HELD_OUT=${HELD_OUT:-500}
    PREPARE="prepare-multi30k.sh --small" TEST=test2016 DEVICES=${DEVICES:-2} TOKENS=${TOKENS:-300}
    SUBWORDS=${SUBWORDS:-2000}
    MODEL=${MODEL:-"--encoder-bidirectional-first --share-all-embeddings --encoder-layers 2
      --encoder-embed-dim 128 --encoder-hidden-size 128 --dropout 0"}
    TRAINING=${TRAINING:-"$ADAM --lr 0.008 --lr-scheduler inverse_sqrt --warmup-updates 200 --max-update 1500"}
    ;;
  multi30k)
    PREPARE=prepare-multi30k.sh TEST=test2016 DEVICES=${DEVICES:-2} SUBWORDS=${SUBWORDS:-6000}
    TOKENS=${TOKENS:-$((800 / DEVICES))}
    MODEL=${MODEL:-"--share-all-embeddings --encoder-layers 2 --encoder-embed-dim 256 --encoder-hidden-size 256 --dropout 0.3"}
    TRAINING=${TRAINING:-"$ADAM --lr 0.002 --lr-scheduler fixed --force-anneal 8 --lr-shrink 0.3 --max-epoch 12"}
    ;;
  wmt14 | wmt17)
    PREPARE=prepare-$SIZE-ende.sh TEST=test DEVICES=${DEVICES:-4} SUBWORDS=${SUBWORDS:-32000}
    TOKENS=${TOKENS:-4000}
    MODEL=${MODEL:-"--share-all-embeddings --encoder-layers 4 --encoder-embed-dim 512 --encoder-hidden-size 1024 --dropout 0.3"}
    TRAINING=${TRAINING:-"$ADAM --lr 0.001 --lr-scheduler reduce_lr_on_plateau --lr-shrink 0.7 --max-epoch 12"}
    ;;
  *) stop "no size: give --small (minutes on 2 cores), --multi30k, --wmt14 or --wmt17" ;;
esac
[[ $DEVICES =~ ^[1-9][0-9]*$ ]] && [ "$DEVICES" -gt 1 ] ||
  stop "DEVICES=$DEVICES is not a number of workers: give 2 or more"
[[ $TOKENS =~ ^[1-9][0-9]*$ ]] || stop "TOKENS=$TOKENS is not a number of target words: give one such as 400"
OUT=${OUT:-$ROOT/ono2019-$SIZE-run}
BIN=$OUT/data-$SUBWORDS/bin
DEVICE=--cpu
[ -z "$GPU" ] || DEVICE=
FROM=de TO=en
case $SIZE in wmt*) FROM=en TO=de ;; esac
case $SIZE in
  small) REFERENCE=$OUT/text/$TEST.$TO ;;
  multi30k) REFERENCE=${MULTI30K:-$OUT/text}/$TEST.$TO ;;
  wmt14) REFERENCE=${WMT14:-$OUT/text}/$TEST.$TO ;;
  wmt17) REFERENCE=${WMT17:-$OUT/text}/$TEST.$TO ;;
esac

# describe SYSTEM: sets WORKERS, BACKEND, FEEDING and TITLE
describe() {
  WORKERS=$DEVICES FEEDING=
  case $1 in
    single*) WORKERS=1 BACKEND=legacy_ddp TITLE="one device" ;;
    data*) BACKEND=legacy_ddp TITLE="data parallel" ;;
    model*) BACKEND=model_parallel TITLE="model parallel" ;;
    hybrid*) BACKEND=hybrid TITLE=hybrid ;;
  esac
  case $1 in
    single | data | model | hybrid) ;;
    single-feeding | data-feeding | model-feeding | hybrid-feeding)
      FEEDING=--input-feeding TITLE="$TITLE, input feeding" ;;
    *) stop "SYSTEMS has $1: use single, data, model, hybrid, each also with -feeding" ;;
  esac
}

train() { # SYSTEM
  local save=$OUT/$1 start=()
  [ ! -e "$save/trained" ] || return 0
  if [ "$WORKERS" -gt 1 ] && [ -n "$LAUNCH" ]; then read -r -a start <<< "$LAUNCH"; fi
  if [ -z "$DRY" ]; then
    mkdir -p "$save"
    printf 'title: %s\nworkers: %s\n' "$TITLE" "$WORKERS" > "$save/run.txt"
  fi
  # shellcheck disable=SC2086  (lists of options)
  logged "$save/train.log" ' \| (train|valid) \||Loaded checkpoint|early stop' \
    "${start[@]}" fairseq-train "$BIN" --user-dir "$PLUGIN" $DEVICE \
    --arch hybrid_lstm $FEEDING $MODEL $TRAINING \
    --distributed-world-size "$WORKERS" --ddp-backend "$BACKEND" --num-workers 0 \
    --max-tokens "$TOKENS" --update-freq "$((DEVICES / WORKERS))" --seed "$SEED" \
    --save-dir "$save" --no-epoch-checkpoints --log-format simple --log-interval 100 $EXTRA
  run touch "$save/trained"
}

translate() { # SYSTEM
  local save=$OUT/$1
  [ ! -e "$save/score.txt" ] || return 0
  # shellcheck disable=SC2086
  logged "$save/generate.log" Translated \
    fairseq-generate "$BIN" --user-dir "$PLUGIN" $DEVICE --gen-subset test \
    --path "$save/checkpoint_best.pt" --beam 5 --max-len-a 1.5 --max-len-b 10 --batch-size 64 \
    --required-batch-size-multiple 1 --remove-bpe sentencepiece --results-path "$save/output"
  if [ -n "$DRY" ]; then
    echo "hypotheses $save/output/generate-test.txt > $save/hypothesis.$TO"
    run sacrebleu "$REFERENCE" -i "$save/hypothesis.$TO" -m bleu -f text -w 2
    return
  fi
  hypotheses "$save/output/generate-test.txt" > "$save/hypothesis.$TO"
  sacrebleu "$REFERENCE" -i "$save/hypothesis.$TO" -m bleu -f text -w 2 > "$save/score.part"
  mv "$save/score.part" "$save/score.txt"
}

for system in $SYSTEMS; do describe "$system"; done # a wrong name is noticed before the work
# shellcheck disable=SC2086  (a script and perhaps its option)
OUT=$OUT SUBWORDS=$SUBWORDS bash "$HERE"/$PREPARE ${DRY:+--dry-run}
for system in $SYSTEMS; do
  describe "$system"
  say "$system: $TITLE, $FROM-$TO, $WORKERS of $DEVICES workers, $BACKEND"
  train "$system"
  translate "$system"
done
say "result"
# shellcheck disable=SC2086
run python "$HERE/results.py" "$OUT" ono2019 single-feeding,single $SYSTEMS

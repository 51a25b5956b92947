#!/usr/bin/env bash
# All speed benchmarks, one after the other, and the tables and pictures of README.md and docs/ made from them.
#
#   MULTI30K=folder WIKITEXT2=folder bash benchmarks/run.sh              or: make bench; about an hour
#   ... bash benchmarks/run.sh translation_parallel language_model       some of them
#
# The machine must do nothing else meanwhile. MULTI30K has {train,valid,test2016}.{de,en}, WIKITEXT2
# wiki.{train,valid,test}.tokens. What trains for hours (quality) has scripts of its own, which write to the
# same folder: translation_quality.sh, parallel_quality.sh, language_model_quality.sh,
# averaging_quality.sh, averaging_exploration.sh. What names a rate and two_hosts need root (devices.sh);
# so does bucket_size, which runs only if it is named.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
PYTHON=python
[ ! -x .venv/bin/python ] || PYTHON=.venv/bin/python
export OMP_NUM_THREADS=1
RESULTS=benchmarks/results
ALL=(translation_single loss translation_parallel translation_2500mbit translation_1gbit
  translation_parallel_multi30k translation_2500mbit_multi30k translation_1gbit_multi30k
  four_none four_1gbit four_500mbit four_250mbit language_model averaging averaging_large planning two_hosts)
FOUR=(single pytorch_ddp whole_head hybrid decoupled bf16)
NETWORK=(single legacy_ddp pytorch_ddp hybrid decoupled)

need() { # VARIABLE
  [ -d "${!1:-}" ] || { echo "run.sh: $1=${!1:-} is not a folder: say where the text is" >&2; exit 2; }
}

measure() {
  local rate parallel=benchmarks/translation_parallel.py json=$RESULTS/$1.json
  case $1 in
    translation_single) need MULTI30K; $PYTHON benchmarks/translation_single.py --data "$MULTI30K" --json "$json" ;;
    loss) $PYTHON benchmarks/loss.py --json "$json" ;;
    bucket_size) # of pytorch_ddp, tuned once: BUCKET_MB of the benchmarks
      $PYTHON $parallel --workload fixed --devices 1 1gbit --rounds 2 --json "$json" \
        --systems single buckets_1 buckets_5 buckets_25 buckets_100 ;;
    translation_parallel) $PYTHON $parallel --workload fixed --json "$json" ;;
    translation_parallel_multi30k)
      need MULTI30K
      $PYTHON $parallel --workload multi30k --multi30k "$MULTI30K" --json "$json" \
        --systems single threads "${NETWORK[@]:1}" model_parallel ;;
    translation_*mbit | translation_*gbit)
      $PYTHON $parallel --workload fixed --devices 1 "${1#translation_}" --systems "${NETWORK[@]}" \
        --json "$json" ;;
    translation_*bit_multi30k)
      need MULTI30K
      rate=${1#translation_}
      $PYTHON $parallel --workload multi30k --multi30k "$MULTI30K" --devices 1 "${rate%_multi30k}" \
        --systems "${NETWORK[@]}" --json "$json" ;;
    four_*) # devices of 0.45 of a core; their links: none, or a rate as 500mbit
      need MULTI30K
      $PYTHON $parallel --workload multi30k --multi30k "$MULTI30K" --max-tokens 1500 --workers 4 \
        --devices 0.45 "${1#four_}" --rounds 2 --updates 1 --systems "${FOUR[@]}" --json "$json" ;;
    language_model) need WIKITEXT2; $PYTHON benchmarks/language_model.py --wikitext2 "$WIKITEXT2" --rounds 3 --updates 2 --json "$json" ;;
    averaging) need WIKITEXT2; $PYTHON benchmarks/averaging.py --wikitext2 "$WIKITEXT2" --rounds 3 --json "$json" ;;
    averaging_large)
      need WIKITEXT2
      $PYTHON benchmarks/averaging.py --wikitext2 "$WIKITEXT2" --words 10000 --embed 128 --layers 3 --hidden 512 \
        --sequences 32 --updates 10 --rounds 3 --json "$json" ;;
    planning) $PYTHON benchmarks/planning.py --json "$json" ;;
    two_hosts) need WIKITEXT2; $PYTHON benchmarks/two_hosts.py --wikitext2 "$WIKITEXT2" --rounds 1 --json "$json" ;;
    *) echo "run.sh: no benchmark $1: there are ${ALL[*]}" >&2; exit 2 ;;
  esac
}

[ $# -gt 0 ] || set -- "${ALL[@]}"
for name in "$@"; do
  echo "== $name"
  measure "$name"
done
$PYTHON benchmarks/tables.py
$PYTHON benchmarks/plots.py

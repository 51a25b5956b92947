#!/usr/bin/env bash
# Half of the suite on every Python that is found, each in an environment of its own: make test-versions
#
# The half: the computations (models, criterions, optimizers, search, ONNX), reading checkpoints, and several
# workers against one (gradients). An interpreter that fails does not stop the others; the matrix is at the end.
#
#   VERSIONS="3.10 3.11 3.12 3.13"   looked for as python3.X, then among pyenv's
#   TESTS="tests/models ..."         instead of the half
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
VERSIONS=${VERSIONS:-3.10 3.11 3.12 3.13}
TESTS=${TESTS:-tests/models tests/optim tests/criterions tests/generation tests/inference tests/tasks
  tests/checkpoints/test_unpickler.py tests/fairseq_patches/test_versions.py tests/backends/test_gradients.py}

find_python() { # X.Y
  command -v "python$1" 2> /dev/null && "python$1" -c '' 2> /dev/null && return
  ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python 2> /dev/null | tail -n 1
}

# The exact versions of constraints.txt are for 3.11. torch 2.6 is the oldest that is supported.
constraints() { # X.Y
  case $1 in
    3.11) cat constraints.txt ;;
    3.10) printf '%s\n' 'setuptools<81' 'torch==2.6.0' ;;
    *) echo 'setuptools<81' ;;
  esac
}

matrix=()
for version in $VERSIONS; do
  place=.versions/$version log=.versions/$version.log
  mkdir -p .versions
  python=$(find_python "$version" | tail -n 1)
  [ -n "$python" ] || { matrix+=("$version|||not found"); continue; }
  echo "== $version: $python (log: $log)"
  constraints "$version" > "$place.txt"
  if ! make --no-print-directory setup PYTHON="$python" VENV="$place" CONSTRAINTS="-c $place.txt" > "$log" 2>&1; then
    matrix+=("$version|||not installed: see $log")
    continue
  fi
  # shellcheck disable=SC2086  (a list)
  VIRTUAL_ENV=$PWD/$place OMP_NUM_THREADS=1 \
    "$place/bin/python" -m pytest -n 2 --dist loadfile -m "not long" $TESTS 2>&1 | tee -a "$log" | tail -n 1
  result=$(tail -n 1 "$log")
  matrix+=("$version|$("$place/bin/python" -c 'import torch; print(torch.__version__)')|$("$place/bin/python" -c \
    'from importlib.metadata import version as v; print(v("fairseq-fixed"))')|$result")
done
printf '\n%s\n%s\n' '| Python | torch | fairseq-fixed | result |' '|---|---|---|---|'
printf '%s\n' "${matrix[@]}" | sed 's/|/ | /g; s/^/| /; s/$/ |/'
! printf '%s\n' "${matrix[@]}" | grep -qE 'failed|error|not '

# What prepare-wmt14-ende.sh and prepare-wmt17-ende.sh share; sourced after preparing.sh, not run.
# Validation and test sets come from sacreBLEU, which checks them; checksums of the training text are
# those that TensorFlow Datasets has for the same addresses.

EUROPARL="https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz
  sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7 training/europarl-v7.de-en"
COMMONCRAWL="https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz
  sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5 commoncrawl.de-en"

# corpus URL CHECKSUM PREFIX: one corpus, unpacked; adds to CORPORA
CORPORA=()
corpus() {
  [ -n "$DRY" ] || [ ! -e "$TEXT/train.en" ] || [ ! -e "$TEXT/train.de" ] || return 0
  [ -e "$OUT/unpacked/$3.en" ] && [ -e "$OUT/unpacked/$(basename "${1%.*}").done" ] || fetch "$1" "$2"
  unpack "${1##*/}" "$3.en" "$3.de"
  CORPORA+=("$OUT/unpacked/$3")
}

# gather VALID TEST: all corpora as train, sacreBLEU's test sets as valid and test
gather() {
  local lang side
  for lang in en de; do
    into "$TEXT/train.$lang" cat "${CORPORA[@]/%/.$lang}"
    side=src
    [ $lang = en ] || side=ref
    into "$TEXT/valid.$lang" sacrebleu -t "$1" -l en-de --echo $side
    into "$TEXT/test.$lang" sacrebleu -t "$2" -l en-de --echo $side
  done
}

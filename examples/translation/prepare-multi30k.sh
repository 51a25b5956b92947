#!/usr/bin/env bash
# Multi30k (task 1), German to English: text, sentence pieces, fairseq-preprocess.
#
#   MULTI30K=folder bash examples/translation/prepare-multi30k.sh   train, valid and test2016 .de and .en
#   bash examples/translation/prepare-multi30k.sh                   downloads them (github.com/multi30k)
#   ... --dry-run      prints the commands only
#   ... --small        the toy corpus instead, for a try: seconds
#
# OUT=multi30k-run, SUBWORDS=6000; what is written where: preparing.sh. About 15 s on one core.
# The checksums are those that torchtext has for the same files.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
NAME=multi30k SOURCE=de TARGET=en TEST=test2016
USUAL_SUBWORDS=6000
source "$ROOT/examples/translation/preparing.sh"
arguments MULTI30K "$@"

download() {
  local url=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw sum there here
  while read -r sum there here; do
    [ -n "$DRY" ] || [ ! -e "$TEXT/$here" ] || continue
    fetch "$url/$there.gz" "md5:$sum"
    into "$TEXT/$here" gunzip -c "$DOWNLOADS/$there.gz"
  done <<'FILES'
81ff90b99829c0cd4b1b587d394afd39 train.de train.de
0065d13af80720a55ca8153d126e6627 train.en train.en
6e0e229eb049e3fc99a1ef02fb2d5f91 val.de valid.de
2b69aa9253948ac9f67e94917272dd40 val.en valid.en
efd67d314d98489b716b145475101932 test_2016_flickr.de test2016.de
ff2c0fcb4893a13bd73414306bc250ae test_2016_flickr.en test2016.en
FILES
}

get_text
binarise

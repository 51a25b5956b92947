#!/usr/bin/env bash
# WMT14, English to German: text, sentence pieces, fairseq-preprocess.
#
#   bash examples/translation/prepare-wmt14-ende.sh                 downloads it (1.7 GB)
#   WMT14=folder bash examples/translation/prepare-wmt14-ende.sh    train, valid and test .en and .de
#   DOWNLOADS=folder ...   archives that are here already are not fetched again
#   ... --dry-run          prints the commands only
#   ... --small            the toy corpus instead, for a try: seconds
#
# Europarl v7, Common Crawl, News Commentary v9; newstest2013 (valid), newstest2014 (test).
# OUT=wmt14-ende-run, SUBWORDS=32000, JOBS=1; what is written where: preparing.sh. Pairs of more than
# 250 pieces, or of lengths that differ by more than 1.5 times, are left out of training. Text is
# neither tokenised nor lower-cased: scores are those of detokenised sacreBLEU.
#
# Checked with small stand-ins for the archives; the download itself has not been run.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
NAME=wmt14-ende SOURCE=en TARGET=de
USUAL_SUBWORDS=32000
CLEAN=${CLEAN:-"250 1.5"}
source "$ROOT/examples/translation/preparing.sh"
source "$ROOT/examples/translation/wmt.sh"
arguments WMT14 "$@"

download() {
  # shellcheck disable=SC2086  (address, checksum, name)
  corpus $EUROPARL
  # shellcheck disable=SC2086
  corpus $COMMONCRAWL
  corpus https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz \
    sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485 training/news-commentary-v9.de-en
  gather wmt13 wmt14/full
}

get_text
binarise

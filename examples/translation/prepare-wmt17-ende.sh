#!/usr/bin/env bash
# WMT17, English to German: text, sentence pieces, fairseq-preprocess.
#
#   bash examples/translation/prepare-wmt17-ende.sh                 downloads it (1.9 GB)
#   WMT17=folder bash examples/translation/prepare-wmt17-ende.sh    train, valid and test .en and .de
#   DOWNLOADS=folder ...   archives that are here already are not fetched again
#   ... --dry-run          prints the commands only
#   ... --small            the toy corpus instead, for a try: seconds
#
# Europarl v7, Common Crawl, News Commentary v12, Rapid 2016; newstest2016 (valid), newstest2017 (test).
# OUT=wmt17-ende-run, SUBWORDS=32000, JOBS=1; what is written where: preparing.sh. Pairs of more than
# 250 pieces, or of lengths that differ by more than 1.5 times, are left out of training. Text is
# neither tokenised nor lower-cased: scores are those of detokenised sacreBLEU.
#
# Checked with small stand-ins for the archives; the download itself has not been run.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
NAME=wmt17-ende SOURCE=en TARGET=de
USUAL_SUBWORDS=32000
CLEAN=${CLEAN:-"250 1.5"}
source "$ROOT/examples/translation/preparing.sh"
source "$ROOT/examples/translation/wmt.sh"
arguments WMT17 "$@"

download() {
  # shellcheck disable=SC2086  (address, checksum, name)
  corpus $EUROPARL
  # shellcheck disable=SC2086
  corpus $COMMONCRAWL
  corpus https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz \
    sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2 training/news-commentary-v12.de-en
  corpus https://data.statmt.org/wmt18/translation-task/rapid2016.tgz \
    sha256:41557dd5d8f0ed3a6d98bce3b798b1a9d3b68361eb99d902329ddbb943a6b55a rapid2016.de-en
  gather wmt16 wmt17
}

get_text
binarise

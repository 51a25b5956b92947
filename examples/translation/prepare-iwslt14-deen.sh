#!/usr/bin/env bash
# IWSLT14 (TED talks), German to English: text, sentence pieces, fairseq-preprocess.
#
#   bash examples/translation/prepare-iwslt14-deen.sh                  downloads it (20 MB)
#   IWSLT14=folder bash examples/translation/prepare-iwslt14-deen.sh   train, valid and test .de and .en
#   DOWNLOADS=folder ...   de-en.tgz is here already
#   ... --dry-run          prints the commands only
#   ... --small            the toy corpus instead, for a try: seconds
#
# Split as in fairseq's own recipe: every 23rd training pair is for validation, dev2010, dev2012 and
# tst2010-2012 are the test set. Unlike there, the text is neither tokenised nor lower-cased, so scores
# (detokenised sacreBLEU) cannot be compared with those usually given for it.
# OUT=iwslt14-deen-run, SUBWORDS=8000; what is written where: preparing.sh. Nobody publishes a
# checksum of the archive: it is noted at the first download and checked from then on.
#
# Checked with a small stand-in for the archive; the download itself has not been run.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
NAME=iwslt14-deen SOURCE=de TARGET=en
USUAL_SUBWORDS=8000
CLEAN=${CLEAN:-"175 1.5"}
source "$ROOT/examples/translation/preparing.sh"
arguments IWSLT14 "$@"

SETS=(TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012)

download() {
  local lang talks=$OUT/unpacked/de-en ted=$ROOT/examples/translation/ted.py
  fetch https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
  unpack de-en.tgz de-en
  for lang in de en; do
    into "$TEXT/train.$lang" python "$ted" train "$talks/train.tags.de-en.$lang"
    into "$TEXT/valid.$lang" python "$ted" valid "$talks/train.tags.de-en.$lang"
    into "$TEXT/test.$lang" python "$ted" test "${SETS[@]/#/$talks/IWSLT14.}" ".de-en.$lang.xml"
  done
}

get_text
binarise

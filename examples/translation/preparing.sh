# The steps of prepare-*.sh; sourced after tools.sh, not run.
#
# A script says what it is (NAME, SOURCE, TARGET, TEST, USUAL_SUBWORDS) and where its text comes from; what
# is here does the rest:  text -> sentence pieces -> fairseq-preprocess, in
#
#   $OUT/downloads        as they came, with SHA256SUMS of those whose checksum nobody published
#   $OUT/text             train, valid and $TEST, a sentence per line
#   $OUT/data-$SUBWORDS   pieces.model, encoded/, bin/ (for fairseq-train), done
#
# Each step leaves its result under its name only when it is complete, and is skipped if it is there.

SMALL=
STEPS=${STEPS:-2}
TEST=${TEST:-test}
SENTENCES=${SENTENCES:-4000} # of the toy corpus, with --small
HELD_OUT=${HELD_OUT:-200}    # and as many for validation and test
CLEAN=${CLEAN:-}             # "LONGEST RATIO": training pairs beyond these are left out
LONGEST=${LONGEST:-1022}     # pieces of a validation or test sentence; fairseq-train takes no longer ones
CHECKSUMS=${CHECKSUMS:-yes}  # no: take a download as it is
JOBS=${JOBS:-1}              # of fairseq-preprocess

# arguments VARIABLE WORDS...: --small and --dry-run; sets OUT, PREPARED and, if VARIABLE names a
# folder, TEXT
arguments() {
  local variable=$1 word
  shift
  for word in "$@"; do
    case $word in
      --dry-run) DRY=1 ;;
      --small) SMALL=1 ;;
      *) stop "unknown argument $word: use --small or --dry-run; settings are variables" ;;
    esac
  done
  SUBWORDS=${SUBWORDS:-${SMALL:+2000}}
  SUBWORDS=${SUBWORDS:-$USUAL_SUBWORDS}
  [[ $SUBWORDS =~ ^[1-9][0-9]*$ ]] ||
    stop "SUBWORDS=$SUBWORDS is not a number of pieces: give one such as 6000"
  OUT=${OUT:-$ROOT/$NAME${SMALL:+-small}-run}
  PREPARED=$OUT/data-$SUBWORDS
  DOWNLOADS=${DOWNLOADS:-$OUT/downloads}
  TEXT=$OUT/text
  [ -n "$SMALL" ] || TEXT=${!variable:-$TEXT}
  LOCAL= # the variable, if the text is a folder of the user's
  [ -n "$SMALL" ] || LOCAL=${!variable:+$variable}
}

# fetch URL [md5:SUM | sha256:SUM]: into $DOWNLOADS; a download that was cut off goes on
fetch() {
  local file=$DOWNLOADS/${1##*/}
  run mkdir -p "$DOWNLOADS"
  if [ ! -e "$file" ]; then
    [[ $1 = https:* || $1 = file:* || -n ${2:-} ]] ||
      stop "$1 is not https and has no checksum: get it by means that you trust, as $file"
    run curl -fSL --silent --retry 3 -C - -o "$file.part" "$1" ||
      stop "$1 could not be fetched: try again, remove $file.part first, or get it by other means as $file"
    run mv "$file.part" "$file"
  fi
  verify "$file" "${2:-}"
}

# verify FILE [KIND:SUM]: against what is known, or what the first download had
verify() {
  local file=$1 wanted=${2:-} found notes=$DOWNLOADS/SHA256SUMS
  if [ -n "$DRY" ]; then
    echo "# $file: ${wanted:-checksum noted at the first download}"
    return
  fi
  [ "$CHECKSUMS" != no ] || return 0
  if [ -z "$wanted" ] && [ -e "$notes" ]; then
    wanted=$(sed -n "s|^\([0-9a-f]*\)  ${file##*/}\$|sha256:\1|p" "$notes")
  fi
  found=$(sum_of "${wanted%%:*}" "$file")
  if [ -z "$wanted" ]; then
    echo "$found  ${file##*/}" >> "$notes"
  elif [ "$found" != "${wanted#*:}" ]; then
    stop "$file has ${wanted%%:*} $found, not ${wanted#*:}: remove it to fetch it again, or take it as it is with CHECKSUMS=no"
  fi
}

sum_of() { # KIND FILE
  if [ "$1" = md5 ]; then md5sum < "$2"; else sha256sum < "$2"; fi | cut -d ' ' -f 1
}

# unpack ARCHIVE MEMBER...: files of a tar archive, into $OUT/unpacked
unpack() {
  local archive=$DOWNLOADS/$1 done
  done=$OUT/unpacked/${1%.*}.done
  shift
  [ ! -e "$done" ] || return 0
  run mkdir -p "$OUT/unpacked"
  run tar -xzf "$archive" -C "$OUT/unpacked" "$@"
  run touch "$done"
}

# into FILE COMMAND...: its output as FILE, once it is complete
into() {
  local file=$1
  shift
  [ ! -e "$file" ] || return 0
  if [ -n "$DRY" ]; then printf '%q ' "$@"; printf '> %q\n' "$file"; return; fi
  "$@" > "$file.part"
  mv "$file.part" "$file"
}

# get_text: calls the script's `download`, or takes the toy corpus or the user's folder
get_text() {
  local file
  say "1/$STEPS  text"
  if [ -n "$SMALL" ]; then
    toy_text
  elif [ -z "$LOCAL" ]; then
    run mkdir -p "$TEXT"
    download
  fi
  for file in {train,valid,"$TEST"}.{"$SOURCE","$TARGET"}; do
    [ -n "$DRY" ] || [ -e "$TEXT/$file" ] ||
      stop "${LOCAL:+$LOCAL=}$TEXT has no $file: give a folder with train, valid and $TEST .$SOURCE and .$TARGET"
  done
  run python "$PIECES" check "$LONGEST" "$TEXT" "$SOURCE,$TARGET" "train,valid,$TEST"
  echo "  $TEXT"
}

toy_text() {
  [ ! -e "$TEXT/done" ] || return 0
  run python "$TOY_CORPUS" "$TEXT" --train "$SENTENCES" --valid "$HELD_OUT" --test "$HELD_OUT"
  for lang in "$SOURCE" "$TARGET"; do
    [ "$TEST" = test ] || run mv "$TEXT/test.$lang" "$TEXT/$TEST.$lang"
  done
  run touch "$TEXT/done"
}

# binarise: one vocabulary of sentence pieces for both languages, then fairseq's files
binarise() {
  local split lang train=$PREPARED/encoded/train
  say "2/$STEPS  sentencepiece ($SUBWORDS pieces for both languages) and fairseq-preprocess"
  if [ -z "$DRY" ]; then
    CHECKSUM_OF_TEXT=$(cat "$TEXT"/{train,valid,"$TEST"}.{"$SOURCE","$TARGET"} | cksum)
    mkdir -p "$PREPARED"
    same_settings "$PREPARED" "another OUT" SOURCE TARGET TEST CLEAN CHECKSUM_OF_TEXT
  fi
  [ ! -e "$PREPARED/done" ] || return 0
  run mkdir -p "$PREPARED/encoded"
  run python "$PIECES" train "$PREPARED/pieces" "$SUBWORDS" "$TEXT/train.$SOURCE" "$TEXT/train.$TARGET"
  for split in train valid "$TEST"; do
    for lang in "$SOURCE" "$TARGET"; do
      run python "$PIECES" encode "$PREPARED/pieces" "$TEXT/$split.$lang" "$PREPARED/encoded/$split.$lang" \
        $([ "$split" = train ] || echo "$LONGEST")
    done
  done
  if [ -n "$CLEAN" ]; then
    # shellcheck disable=SC2086  (two numbers)
    run python "$PIECES" clean "$train" "$SOURCE" "$TARGET" "$train.clean" $CLEAN
    train=$train.clean
  fi
  run rm -rf "$PREPARED/bin"
  logged "$PREPARED/prepare.log" 'sents,' \
    fairseq-preprocess --source-lang "$SOURCE" --target-lang "$TARGET" --joined-dictionary \
    --trainpref "$train" --validpref "$PREPARED/encoded/valid" \
    --testpref "$PREPARED/encoded/$TEST" --destdir "$PREPARED/bin" --workers "$JOBS"
  run touch "$PREPARED/done"
}

"""Sentencepiece for the recipes: one model of both languages, text in its pieces, and a filter.

    python pieces.py train MODEL_PREFIX VOCABULARY_SIZE [--split-digits] FILE...
    python pieces.py check LONGEST FOLDER SOURCE,TARGET SPLIT,...
    python pieces.py encode MODEL_PREFIX INPUT OUTPUT [LONGEST]
    python pieces.py clean INPUT_PREFIX SOURCE TARGET OUTPUT_PREFIX LONGEST RATIO

With --split-digits every digit is a piece, so numbers that are rare can be copied.
`check` refuses what is no parallel text: other encodings, empty files, sides of unlike length and,
outside of training, lines of more than LONGEST words. The others leave a result that exists alone,
so an interrupted recipe goes on where it stopped. `clean` keeps pairs of 1 to LONGEST pieces on
both sides whose lengths differ by at most RATIO times.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import NoReturn

ENOUGH = 5_000_000
"""lines to train on; of more, so many are drawn"""


def text(name: str, mode: str = "r"):
    """Only \\n ends a line: crawled text has others within its sentences."""
    return open(name, mode, encoding="utf-8", newline="\n")


MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def stop(line: str) -> NoReturn:
    print(f"pieces.py: {line}", file=sys.stderr)
    sys.exit(2)


def count_lines(name: str, longest: int = 0) -> int:
    """Ends the program at the first that is not text, or has more than so many words."""
    number = 0
    with open(name, "rb") as f:
        start = f.read(4)
        for mark, encoding in MARKS:
            if start.startswith(mark):
                stop(f"{name} is {encoding}: convert it, as by iconv -f {encoding} -t UTF-8")
        if start.startswith(codecs.BOM_UTF8):
            stop(f"{name} begins with a byte order mark: remove it, as by tail -c +4")
        f.seek(0)
        for number, line in enumerate(f, 1):
            if b"\0" in line:
                stop(
                    f"{name}, line {number}, has a NUL byte, so it is UTF-16 or no text: convert "
                    "the file, as by iconv -f UTF-16LE -t UTF-8, or mend the line"
                )
            try:
                words = len(line.decode("utf-8").split())
            except UnicodeDecodeError:
                stop(
                    f"{name}, line {number}, is not UTF-8: convert the file, as "
                    "by iconv -f ISO-8859-1 -t UTF-8, or mend the line"
                )
            if longest and words > longest:
                stop(
                    f"{name}, line {number}, has {words:,} words, more than the {longest:,} that "
                    "fit: a line should be one sentence, split it"
                )
    return number


def refuse_unequal_sides(longest: str, folder: str, sides: str, splits: str) -> None:
    for split in splits.split(","):
        limit = 0 if split.endswith("train") else int(longest)
        names = [os.path.join(folder, f"{split}.{side}") for side in sides.split(",")]
        counts = [count_lines(name, limit) for name in names]
        for name, count in zip(names, counts):
            if count == 0:
                stop(f"{name} is empty: it should have a sentence per line")
            if count != counts[0]:
                stop(
                    f"{names[0]} has {counts[0]} lines and {os.path.basename(name)} {count}: they "
                    "must be translations line by line"
                )


def train(prefix: str, size: str, *files: str) -> None:
    if os.path.exists(f"{prefix}.model"):
        return
    import sentencepiece

    digits = files[0] == "--split-digits"
    files = files[digits:]
    lines = sum(map(count_lines, files))
    drawn = {"input_sentence_size": ENOUGH, "shuffle_input_sentence": True}
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=list(files),
            model_prefix=f"{prefix}.tmp",
            vocab_size=int(size),
            character_coverage=1.0,
            split_digits=digits,
            num_threads=2,
            minloglevel=1,
            **(drawn if lines > ENOUGH else {}),
        )
    except RuntimeError as error:  # a vocabulary that the text cannot fill
        reason = str(error).splitlines()[-1].rpartition("] ")[2]
        stop(f"SUBWORDS={size} pieces cannot be made of {files[0]}: {reason}")
    for ending in ("vocab", "model"):
        os.replace(f"{prefix}.tmp.{ending}", f"{prefix}.{ending}")


def encode(prefix: str, source: str, target: str, longest: str = "0") -> None:
    if os.path.exists(target):
        return
    import sentencepiece

    count_lines(source)
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    with text(source) as lines, text(f"{target}.tmp", "w") as f:
        for number, line in enumerate(lines, 1):
            pieces = model.encode(line.strip(), out_type=str)
            if int(longest) and len(pieces) > int(longest):
                stop(
                    f"{source}, line {number}, has {len(pieces):,} pieces, more than the {longest} "
                    "of a batch: split the line, or give a larger TOKENS"
                )
            f.write(" ".join(pieces) + "\n")
    os.replace(f"{target}.tmp", target)


def clean(prefix: str, source: str, target: str, result: str, longest: str, ratio: str) -> None:
    sides = (source, target)
    if all(os.path.exists(f"{result}.{side}") for side in sides):
        return
    files = [text(f"{prefix}.{side}") for side in sides]
    kept = [text(f"{result}.{side}.tmp", "w") for side in sides]
    pairs = left_out = 0
    for lines in zip(*files):
        lengths = sorted(len(line.split()) for line in lines)
        pairs += 1
        if lengths[0] >= 1 and lengths[1] <= min(int(longest), float(ratio) * lengths[0]):
            for line, f in zip(lines, kept):
                f.write(line)
        else:
            left_out += 1
    for f in (*files, *kept):
        f.close()
    for side in sides:
        os.replace(f"{result}.{side}.tmp", f"{result}.{side}")
    print(f"  {left_out:,} of {pairs:,} training pairs left out: empty, long or of unlike length")


if __name__ == "__main__":
    commands = {"check": refuse_unequal_sides, "train": train, "encode": encode, "clean": clean}
    commands[sys.argv[1]](*sys.argv[2:])

"""Sentencepiece for the recipes: one model of both languages, text in its pieces, and a filter.

    python pieces.py train MODEL_PREFIX VOCABULARY_SIZE FILE...
    python pieces.py encode MODEL_PREFIX INPUT OUTPUT
    python pieces.py clean INPUT_PREFIX SOURCE TARGET OUTPUT_PREFIX LONGEST RATIO

All leave a result that exists alone, so an interrupted recipe goes on where it stopped. `clean`
keeps pairs of 1 to LONGEST pieces on both sides whose lengths differ by at most RATIO times.
"""

from __future__ import annotations

import os
import sys

ENOUGH = 5_000_000
"""lines to train on; of more, so many are drawn"""


def text(name: str, mode: str = "r"):
    """Only \\n ends a line: crawled text has others within its sentences."""
    return open(name, mode, encoding="utf-8", newline="\n")


def count_lines(name: str) -> int:
    """Ends the program at the first that is not text."""
    number = 0
    with open(name, "rb") as f:
        for number, line in enumerate(f, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                sys.exit(
                    f"pieces.py: {name}, line {number}, is not UTF-8: convert the file, as "
                    "by iconv -f ISO-8859-1 -t UTF-8, or mend the line"
                )
    return number


def train(prefix: str, size: str, *files: str) -> None:
    if os.path.exists(f"{prefix}.model"):
        return
    import sentencepiece

    lines = sum(map(count_lines, files))
    drawn = {"input_sentence_size": ENOUGH, "shuffle_input_sentence": True}
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=list(files),
            model_prefix=f"{prefix}.tmp",
            vocab_size=int(size),
            character_coverage=1.0,
            num_threads=2,
            minloglevel=1,
            **(drawn if lines > ENOUGH else {}),
        )
    except RuntimeError as error:  # a vocabulary that the text cannot fill
        reason = str(error).splitlines()[-1].rpartition("] ")[2]
        sys.exit(f"pieces.py: SUBWORDS={size} pieces cannot be made of {files[0]}: {reason}")
    for ending in ("vocab", "model"):
        os.replace(f"{prefix}.tmp.{ending}", f"{prefix}.{ending}")


def encode(prefix: str, source: str, target: str) -> None:
    if os.path.exists(target):
        return
    import sentencepiece

    count_lines(source)
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    with text(source) as lines, text(f"{target}.tmp", "w") as f:
        f.writelines(" ".join(model.encode(line.strip(), out_type=str)) + "\n" for line in lines)
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
    {"train": train, "encode": encode, "clean": clean}[sys.argv[1]](*sys.argv[2:])

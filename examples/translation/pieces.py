"""Sentencepiece for the recipes: train one model on both languages, then encode files with it.

    python pieces.py train MODEL_PREFIX VOCABULARY_SIZE FILE...
    python pieces.py encode MODEL_PREFIX INPUT OUTPUT

Both leave a result that exists alone, so an interrupted recipe goes on where it stopped.
"""

from __future__ import annotations

import os
import sys

import sentencepiece


def train(prefix: str, size: str, *files: str) -> None:
    if os.path.exists(f"{prefix}.model"):
        return
    sentencepiece.SentencePieceTrainer.train(
        input=list(files),
        model_prefix=f"{prefix}.tmp",
        vocab_size=int(size),
        character_coverage=1.0,
        num_threads=2,
        minloglevel=1,
    )
    for ending in ("vocab", "model"):
        os.replace(f"{prefix}.tmp.{ending}", f"{prefix}.{ending}")


def encode(prefix: str, source: str, target: str) -> None:
    if os.path.exists(target):
        return
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    with open(source, encoding="utf-8") as lines, open(f"{target}.tmp", "w", encoding="utf-8") as f:
        f.writelines(" ".join(model.encode(line.strip(), out_type=str)) + "\n" for line in lines)
    os.replace(f"{target}.tmp", target)


if __name__ == "__main__":
    {"train": train, "encode": encode}[sys.argv[1]](*sys.argv[2:])

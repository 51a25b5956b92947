"""Perplexity of text by the language model beside this file: python score.py < text.txt

Needs onnxruntime, numpy and, for sentence pieces, sentencepiece. Every line for itself; with
--running each goes on where the one before ended.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE, END, UNKNOWN, MOST = Path(__file__).resolve().parent, 2, 3, 1000


class LanguageModel:
    def __init__(self, folder=HERE, threads=0):
        how = onnxruntime.SessionOptions()
        how.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(f"{folder}/language_model.onnx", how)
        settings = json.loads(Path(folder, "settings.json").read_text("utf-8"))
        self.ids = {word: i for i, word in enumerate(settings["source"])}
        self.split, self.state = str.split, {}
        if Path(folder, "pieces.model").exists():
            import sentencepiece

            pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/pieces.model")
            self.split = lambda text: pieces.encode(text, out_type=str)

    def forget(self):
        sizes = {i.name: i.shape[2] for i in self.session.get_inputs()[1:]}
        self.state = {name: np.zeros((1, 1, n), np.float32) for name, n in sizes.items()}

    def score(self, text):
        """Log-probability and number of a line's words, its end included."""
        ids = [END, *(self.ids.get(word, UNKNOWN) for word in self.split(text)), END]
        total = 0.0
        for start in range(0, len(ids) - 1, MOST):
            words, wanted = ids[:-1][start : start + MOST], ids[1:][start : start + MOST]
            given = {"words": np.array([words], np.int64), **self.state}
            found, *after = self.session.run(None, given)
            self.state = dict(zip(self.state, after))
            total += float(found[0, np.arange(len(wanted)), wanted].astype(np.float64).sum())
        return total, len(ids) - 1


def main():
    parser = argparse.ArgumentParser(
        description="Perplexity of the lines of the input, and of all."
    )
    parser.add_argument("--running", action="store_true", help="lines go on from each other")
    parser.add_argument("--threads", type=int, default=0, help="all, if not given")
    options = parser.parse_args()
    model, total, count = LanguageModel(threads=options.threads), 0.0, 0
    sys.stdout.reconfigure(encoding="utf-8")
    model.forget()
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            print(f"line {number} is not UTF-8: left out", file=sys.stderr)
            continue
        if not options.running:
            model.forget()
        score, words = model.score(text)
        total, count = total + score, count + words
        print(f"{math.exp(-score / words):.2f}\t{words}\t{text}")
    print(f"all: perplexity {math.exp(-total / max(count, 1)):.2f}, {count} words")


if __name__ == "__main__":
    main()

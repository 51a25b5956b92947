"""Translate with the model beside this file; needs onnxruntime, numpy and perhaps sentencepiece.

python translate.py "A sentence."  or  python translate.py < source.txt > target.txt
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE, PAD, END, UNKNOWN = Path(__file__).resolve().parent, 1, 2, 3


class Translator:
    def __init__(self, folder=HERE, threads=0, longest=(1.5, 10)):
        how, self.longest = onnxruntime.SessionOptions(), longest  # times the source's, and more
        how.intra_op_num_threads = threads
        self.encoder = onnxruntime.InferenceSession(f"{folder}/encoder.onnx", how)
        self.decoder = onnxruntime.InferenceSession(f"{folder}/decoder.onnx", how)
        self.names = [output.name for output in self.encoder.get_outputs()]
        self.settings = json.loads(Path(folder, "settings.json").read_text("utf-8"))
        self.target, self.split = self.settings["target"], str.split
        self.ids = {word: i for i, word in enumerate(self.settings["source"])}
        self.barred = np.zeros((3, len(self.target)), np.float32)  # at first, later, at last
        self.barred[:, PAD] = self.barred[0, END] = self.barred[2] = -np.inf
        self.barred[2, END] = 0
        if Path(folder, "pieces.model").exists():
            from sentencepiece import SentencePieceProcessor as Pieces

            self.split = Pieces(model_file=f"{folder}/pieces.model").encode_as_pieces

    def encode(self, text):
        ids = [*(self.ids.get(word, UNKNOWN) for word in self.split(text)), END]
        if len(ids) > self.settings["longest"]:
            raise ValueError(f"{len(ids)} pieces are too many")
        return ids

    def decode(self, ids):
        text = " ".join(self.target[i] for i in ids) + " "
        for old, new in self.settings["joins"]:
            text = text.replace(old, new)
        return text.strip()

    def search(self, sources, beam=5):
        """Of every list of ids the `beam` best translations found, as (score, ids)."""
        lengths = np.array([len(s) for s in sources], np.int32)
        words = np.array([s + [PAD] * (max(lengths) - len(s)) for s in sources], np.int64)
        given = zip(self.names, self.encoder.run(None, {"words": words, "lengths": lengths}))
        given = dict(given, count=np.array([2 * beam]))
        live, done = np.arange(len(sources)), [[] for _ in sources]
        order, words = live.repeat(beam), np.full(beam * len(live), END)
        history, scores = words[:, None], np.full((len(live), beam), -np.inf, np.float32)
        scores[:, 0], last = 0, int(self.longest[0] * max(lengths) + self.longest[1])
        for step in range(last + 1):
            given.update(words=words, order=order, scores=scores)
            given["barred"] = self.barred[(step > 0) + (step == last)]
            scores, words, order, _, *state = self.decoder.run(None, given)
            given.update(zip(self.names[3:], state))
            for b, k in zip(*np.nonzero((words == END)[:, :beam] & np.isfinite(scores[:, :beam]))):
                if len(done[live[b]]) < beam:
                    ended = history[order[b, k], 1:].tolist()
                    done[live[b]].append((float(scores[b, k]) / (step + 1), ended))
            keep = [b for b, i in enumerate(live) if len(done[i]) < beam and step < last]
            if not keep:
                return [sorted(each, key=lambda found: -found[0]) for each in done]
            on = np.argsort(words == END, 1, kind="stable")[keep, :beam]
            scores, words, order = (
                np.take_along_axis(each[keep], on, 1) for each in (scores, words, order)
            )
            words, order, live = words.ravel(), order.ravel(), live[keep]
            history = np.hstack((history[order], words[:, None]))
            given.update((name, given[name][keep]) for name in self.names[:3])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Translate sentences, or lines of the input.")
    parser.add_argument("sentence", nargs="*", help="translate this, not the input")
    parser.add_argument("--beam", type=int, default=5, help="5; 1 is fastest")
    parser.add_argument("--threads", type=int, default=0, help="all, if not given")
    parser.add_argument("--scores", action="store_true", help="before each: log2 per piece")
    options, sources, texts = parser.parse_args(), {}, {}
    translator = Translator(threads=options.threads)
    given = [" ".join(options.sentence).encode()] if options.sentence else list(sys.stdin.buffer)
    for number, line in enumerate(given):
        try:
            sources[number] = translator.encode(line.decode("utf-8").strip())
        except ValueError as error:  # UnicodeDecodeError is one
            print(f"line {number + 1} is left empty: {error}", file=sys.stderr)
    order = sorted((n for n in sources if len(sources[n]) > 1), key=lambda n: len(sources[n]))
    for batch in (order[i : i + 64] for i in range(0, len(order), 64)):
        found = translator.search([sources[number] for number in batch], options.beam)
        for number, ((score, ids), *_) in zip(batch, found):
            texts[number] = f"{score / np.log(2):.4f}\t" * options.scores + translator.decode(ids)
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.writelines(texts.get(number, "") + "\n" for number in range(len(given)))

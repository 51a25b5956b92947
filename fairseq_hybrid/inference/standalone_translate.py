"""Translate sentences or lines of text with the model beside this file.

python translate.py "A sentence."  or  python translate.py < source.txt > target.txt
Needs onnxruntime, numpy and, for sentence pieces, sentencepiece.
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
        how = onnxruntime.SessionOptions()
        how.intra_op_num_threads = threads
        self.encoder = onnxruntime.InferenceSession(f"{folder}/encoder.onnx", how)
        self.decoder = onnxruntime.InferenceSession(f"{folder}/decoder.onnx", how)
        self.settings = json.loads(Path(folder, "settings.json").read_text("utf-8"))
        self.target, self.joined = self.settings["target"], self.settings["joined"]
        self.ids = {word: i for i, word in enumerate(self.settings["source"])}
        self.longest, self.split = longest, str.split  # 1.5 times as many as the source, and 10
        if self.joined == "sentencepiece":
            import sentencepiece

            pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/pieces.model")
            self.split = lambda text: pieces.encode(text, out_type=str)

    def encode(self, text):
        return [*(self.ids.get(word, UNKNOWN) for word in self.split(text)), END]

    def decode(self, ids):
        text = " ".join(self.target[i] for i in ids)
        if self.joined == "sentencepiece":
            return text.replace(" ", "").replace("\u2581", " ").strip()
        return (text + " ").replace("@@ ", "").strip() if self.joined else text

    def search(self, sources, beam=5):
        """Of every list of ids the `beam` best translations found, as (score, ids)."""
        lengths = np.array([len(s) for s in sources], np.int32)
        width = np.arange(lengths.max())
        words = np.array([s + [PAD] * (len(width) - len(s)) for s in sources], np.int64)
        keys, values, h, c = self.encoder.run(None, {"words": words, "lengths": lengths})
        mask = np.where(width < lengths[:, None], 0, -np.inf).astype(np.float32)
        state = {"h": h, "c": c, "feed": np.zeros_like(h[0])}
        state = {i.name: state[i.name] for i in self.decoder.get_inputs() if i.name in state}
        live, done = np.arange(len(sources)), [[] for _ in sources]
        order, words = live.repeat(beam), np.full(beam * len(live), END)
        history, scores = words[:, None], np.where(np.arange(beam), -np.inf, 0 * live[:, None])
        last = int(self.longest[0] * len(width) + self.longest[1])
        more = {"count": np.array([min(2 * beam + 1, len(self.target) - 1)])}
        for step in range(last + 1):
            more.update(words=words, order=order, keys=keys, values=values, mask=mask)
            ids, gains, end, _, *after = self.decoder.run(None, {**more, **state})
            state = dict(zip(state, after))
            if step == last:
                ids, gains = np.full_like(end, END, np.int64), end
            gains = np.where((ids == END) & (step == 0), -np.inf, gains)
            totals = (scores.reshape(-1, 1) + gains).astype(np.float32).reshape(len(live), -1)
            best = np.argsort(-totals, 1, kind="stable")[:, : 2 * beam]
            rows = best // gains.shape[1] + beam * np.arange(len(live))[:, None]
            ids = np.take_along_axis(ids.reshape(len(live), -1), best, 1)
            totals = np.take_along_axis(totals, best, 1)
            for b, k in zip(*np.nonzero((ids == END)[:, :beam] & np.isfinite(totals[:, :beam]))):
                if len(done[live[b]]) < beam:
                    score, words = totals[b, k] / (step + 1), history[rows[b, k], 1:]
                    done[live[b]].append((float(score), words.tolist()))
            keep = [b for b, i in enumerate(live) if len(done[i]) < beam and step < last]
            if not keep:
                return [sorted(each, key=lambda found: -found[0]) for each in done]
            others = np.argsort(ids == END, 1, kind="stable")[:, :beam]
            scores = np.take_along_axis(totals, others, 1)[keep]
            words = np.take_along_axis(ids, others, 1)[keep].ravel()
            order = np.take_along_axis(rows, others, 1)[keep].ravel()
            history = np.hstack((history[order], words[:, None]))
            if len(keep) < len(live):
                keys, values, mask, live = keys[keep], values[keep], mask[keep], live[keep]


def main():
    parser = argparse.ArgumentParser(description="Translate sentences, or lines of the input.")
    parser.add_argument("sentence", nargs="*", help="translate this, not the input")
    parser.add_argument("--beam", type=int, default=5, help="5; 1 is fastest")
    parser.add_argument("--threads", type=int, default=0, help="all, if not given")
    parser.add_argument("--scores", action="store_true", help="before each: log2 per piece")
    options = parser.parse_args()
    translator, texts, sources = Translator(threads=options.threads), {}, {}
    given = [" ".join(options.sentence).encode()] if options.sentence else list(sys.stdin.buffer)
    for number, line in enumerate(given):
        try:
            ids = translator.encode(line.decode("utf-8").strip())
        except UnicodeDecodeError:
            print(f"line {number + 1} is not UTF-8: left empty", file=sys.stderr)
            continue
        if len(ids) > translator.settings["longest"]:
            print(f"line {number + 1} has {len(ids)} pieces, too many: left empty", file=sys.stderr)
        elif len(ids) > 1:
            sources[number] = ids
    order = sorted(sources, key=lambda number: len(sources[number]))
    for batch in (order[i : i + 64] for i in range(0, len(order), 64)):
        found = translator.search([sources[number] for number in batch], options.beam)
        for number, ((score, ids), *_) in zip(batch, found):
            score = f"{score / np.log(2):.4f}\t" if options.scores else ""
            texts[number] = score + translator.decode(ids)
    sys.stdout.reconfigure(encoding="utf-8")
    for number in range(len(given)):
        print(texts.get(number, ""))


if __name__ == "__main__":
    main()

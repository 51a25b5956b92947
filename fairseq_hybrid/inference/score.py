"""``fairseq-hybrid-score``: how well a language model foresees a text, line by line and in all.

fairseq-hybrid-score wikitext2-run wiki.test.tokens --running --total
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch
from fairseq.models import FairseqLanguageModel
from fairseq.sequence_scorer import SequenceScorer
from tqdm import tqdm

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.inference import commands, lines, trained
from fairseq_hybrid.inference.lines import TextLine
from fairseq_hybrid.inference.trained import Trained
from fairseq_hybrid.models.hybrid_lstm_lm import HybridLSTMLanguageModel

EXAMPLE = """\
examples:
  fairseq-hybrid-score wikitext2-run sentences.txt
  fairseq-hybrid-score wikitext2-run wiki.test.tokens --running --total
  echo "the cat sat on the mat" | fairseq-hybrid-score wikitext2-run

Text is as the model was trained on: raw if pieces.model is found, else words between spaces. For
each line: its perplexity, its words or pieces (the end of the line is one, an empty line has
nothing else), and the line. The last line is for all of the text. The lower the better: 50 is as
unsure as a choice among 50 equally likely words. Only with the same words do figures compare.
"""
CHUNK = 1000
"""words of a long line scored at a time, where the model carries its state"""


class Score(NamedTuple):
    nats: float
    """minus the logarithm of the probability"""
    words: int
    unknown: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats / max(self.words, 1), 700))


def parser() -> argparse.ArgumentParser:
    made = commands.CommandParser("score", "Perplexity of text by a language model.", EXAMPLE)
    commands.add_model_options(made)
    add = made.add_argument
    add("text", metavar="TEXT", nargs="?", default="-",
        help="a file, a sentence per line, UTF-8 (default: what is piped)")  # fmt: skip
    add("--running", action="store_true",
        help="every line goes on where the one before ended (hybrid_lstm_lm only; default: each "
        "line for itself)")  # fmt: skip
    add("--total", action="store_true", help="only the last line")
    commands.add_device_options(made)
    return made


def main() -> None:
    options = parser().parse_intermixed_args()
    commands.run(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    if options.text == "-" and sys.stdin.isatty():
        raise UserError("no text: give a file, or pipe text in")
    file = sys.stdin.buffer if options.text == "-" else open(options.text, "rb")  # noqa: SIM115
    model = trained.load(options.checkpoint, options.data, options.pieces, commands.device(options))
    scorer = Scorer(model, options.running)
    everything = []
    bar = tqdm(unit="line", leave=False, disable=not sys.stderr.isatty())
    for line, score in scorer(lines.read(file, options.text)):
        bar.update()
        if line.problem:
            commands.note(f"line {line.number} {line.problem}; it is left out")
            continue
        everything.append(score)
        if not options.total:
            print(f"{score.perplexity:.2f}\t{score.words}\t{line.text}")
    bar.close()
    if not everything:
        raise UserError(f"{options.text} has no line to score")
    total = Score(*map(sum, zip(*everything)))
    name = "pieces" if model.pieces else "words"
    print(
        f"all: perplexity {total.perplexity:.2f}, {total.words:,} {name} "
        f"({total.unknown:,} unknown), {len(everything):,} lines"
    )


class Scorer:
    """Scores lines one by one: a line's words are a batch of their own."""

    def __init__(self, model: Trained, running: bool = False):
        if not isinstance(model.model, FairseqLanguageModel):
            raise UserError(f"{model.path} is no language model: use fairseq-hybrid-translate")
        self.carries = isinstance(model.model, HybridLSTMLanguageModel)
        if running and not self.carries:
            raise UserError("--running needs a model that carries its state: hybrid_lstm_lm")
        self.model, self.running = model, running
        self.scorer = SequenceScorer(model.target)
        self.device = next(model.model.parameters()).device
        positions = model.model.max_positions()
        self.longest = math.inf if self.carries else positions

    def __call__(self, given: Iterator[TextLine]) -> Iterator[tuple[TextLine, Score]]:
        fresh = True
        for line in given:
            ids = self.model.encode(line.text)
            if len(ids) > self.longest:
                line = line._replace(
                    problem=f"has {len(ids):,} words, more than the {self.longest:,} that the "
                    "model takes: split it"
                )
            if line.problem:
                yield line, Score(0.0, 0, 0)
                continue
            yield line, self.score(ids, fresh or not self.running)
            fresh = False

    def score(self, ids: torch.Tensor, fresh: bool) -> Score:
        """Of the words that follow the end of a line."""
        model, end = self.model, self.model.source.eos()
        targets = self.as_targets(ids).to(self.device)
        given = torch.cat((ids.new_tensor([end]), ids[:-1])).to(self.device)
        nats, size = 0.0, CHUNK if self.carries else len(ids)
        for start in range(0, len(ids), size):
            words, wanted = (x[None, start : start + size] for x in (given, targets))
            net_input = {"src_tokens": words, "src_lengths": words.new_tensor([words.size(1)])}
            if self.carries:
                net_input["fresh"] = torch.tensor([fresh and start == 0], device=self.device)
            sample = {"net_input": net_input, "target": wanted}
            found = self.scorer.generate([model.model], sample)[0][0]
            nats -= float(found["positional_scores"].double().sum())
        return Score(nats, len(ids), int((ids == model.source.unk()).sum()))

    def as_targets(self, ids: torch.Tensor) -> torch.Tensor:
        """A task may predict fewer words than it reads (--output-dictionary-size)."""
        target = self.model.target
        return ids.masked_fill(ids >= len(target), target.unk())


if __name__ == "__main__":
    main()

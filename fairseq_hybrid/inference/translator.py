"""Sentences in, translations out, in the same order: fairseq's beam search over batches by length.

from fairseq_hybrid.inference import trained, translator
translate = translator.Translator(trained.load("quickstart-run"))
print(translate(["Herr Richter hat mich gesucht."])[0][0].text)
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from fairseq import utils
from fairseq.models import FairseqLanguageModel

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.inference.trained import Trained


class Hypothesis(NamedTuple):
    text: str
    score: float
    """base-2 logarithm of its probability, per piece (per piece to the power of lenpen)"""
    pieces: list[str]
    attention: torch.Tensor | None = None
    """a row for each piece of the source, a column for each of `pieces`"""


class Translator:
    def __init__(
        self,
        trained: Trained,
        *,
        beam: int = 5,
        nbest: int = 1,
        lenpen: float = 1.0,
        max_len_a: float = 1.5,
        max_len_b: int = 10,
        max_tokens: int = 4000,
        attention: bool = False,
    ):
        if isinstance(trained.model, FairseqLanguageModel):
            raise UserError(f"{trained.path} is a language model: use fairseq-hybrid-score")
        self.trained, self.nbest, self.max_tokens, self.attention = (
            trained, nbest, max_tokens, attention,
        )  # fmt: skip
        search = Namespace(
            beam=beam, lenpen=lenpen, max_len_a=max_len_a, max_len_b=max_len_b,
            print_alignment="hard" if attention else None,
        )  # fmt: skip
        trained.model.prepare_for_inference_(Namespace(generation=search))
        search.print_alignment = None  # the weights are wanted, no aligning model
        self.generator = trained.task.build_generator([trained.model], search)
        self.device = next(trained.model.parameters()).device
        limits = utils.resolve_max_positions(
            trained.task.max_positions(), trained.model.max_positions()
        )
        self.longest = int(limits[0]) if isinstance(limits, (list, tuple)) else int(limits)
        """pieces of a source sentence, its end included"""

    def __call__(
        self, sentences: Sequence[str], done: Callable[[int], object] = lambda _: None
    ) -> list[list[Hypothesis]]:
        return self.translate([self.trained.encode(text) for text in sentences], done)

    @torch.no_grad()
    def translate(
        self, sources: Sequence[torch.Tensor], done: Callable[[int], object] = lambda _: None
    ) -> list[list[Hypothesis]]:
        """Of encoded sentences, none longer than `longest`; `done` hears of every batch's size."""
        task, lengths = self.trained.task, [len(ids) for ids in sources]
        batches = task.get_batch_iterator(
            dataset=task.build_dataset_for_inference(sources, lengths),
            max_tokens=max([self.max_tokens, *lengths]),
            max_sentences=128,
        ).next_epoch_itr(shuffle=False)
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for batch in batches:
            given = {k: v.to(self.device) for k, v in batch["net_input"].items() if v is not None}
            given.pop("prev_output_tokens", None)
            found = task.inference_step(self.generator, [self.trained.model], {"net_input": given})
            for place, hypotheses in zip(batch["id"].tolist(), found):
                best = hypotheses[: self.nbest]
                results[place] = [self.hypothesis(each, lengths[place]) for each in best]
            done(len(found))
        return results

    def hypothesis(self, found: dict, length: int) -> Hypothesis:
        ids, attention = found["tokens"].cpu(), None
        if self.attention and found["attention"] is not None and found["attention"].numel():
            attention = found["attention"][-length:].cpu()  # padding is on the left
        return Hypothesis(
            self.trained.decode(ids),
            float(found["score"]) / math.log(2),
            [self.trained.target[i] for i in ids],
            attention,
        )

"""fairseq's beam search with less work per word, for one `hybrid_lstm`.

The same hypotheses and scores as `SequenceGenerator`, whose name this class takes. What it leaves
out: the first step of all places in a beam but one, passes over the scores of all words (to look
for what is no number, to add up, to sort), copies of what finished sentences have, and attention
nobody asks for. Whatever is not plain beam search with one of our models (ensembles, prefixes,
constraints, sampling, penalties, alignments) is fairseq's code.

Shape suffixes: S sentences that are not finished, R = S x beam their hypotheses, K candidates of a
row or sentence, T words so far, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from fairseq import search, sequence_generator
from fairseq.modules import FairseqDropout
from torch import Tensor

from fairseq_hybrid.generation.decoder_steps import DecoderSteps
from fairseq_hybrid.models.hybrid_lstm import HybridLSTMModel

FairseqGenerator = sequence_generator.SequenceGenerator
PIECE = 64
"""words whose best score is looked at first"""


class Candidates(NamedTuple):
    """Of each sentence, best first."""

    score_SK: Tensor
    word_SK: Tensor
    row_SK: Tensor
    """the hypothesis that the word goes on from"""


class SequenceGenerator(FairseqGenerator):
    """fairseq's, or a faster one where that does the same."""

    def _generate(self, sample, prefix_tokens=None, constraints=None, bos_token=None):
        plain = prefix_tokens is None and constraints is None and self.is_plain()
        if not plain or "src_tokens" not in sample["net_input"]:
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        return Search(self, sample["net_input"], bos_token).run()

    def is_plain(self) -> bool:
        """Whether the options ask for nothing but beam search with one model of ours."""
        model = self.model.single_model
        return (
            self.model.models_size == 1
            and type(model) is HybridLSTMModel
            and not model.decoder.need_attn
            and type(self.search) is search.BeamSearch
            and self.lm_model is None
            and self.repeat_ngram_blocker is None
            and self.token_indices_to_suppress is None
            and not self.match_source_len
            and self.unk_penalty == 0
            and self.temperature == 1
            and self.vocab_size > 4 * self.beam_size + 4  # else candidates run out
            and not any(drops(module) for module in model.modules())
        )


def drops(module: Any) -> bool:
    """Whether it draws random numbers now (`--retain-dropout`)."""
    return isinstance(module, FairseqDropout) and (module.training or module.apply_during_inference)


class Search:
    """One batch."""

    def __init__(self, generator: SequenceGenerator, net_input: dict, bos: int | None):
        self.options, self.beam = generator, generator.beam_size
        self.eos, self.pad = generator.eos, generator.pad
        tokens, model = net_input["src_tokens"], generator.model.single_model
        most = int(generator.max_len_a * tokens.size(1) + generator.max_len_b)
        self.max_len = min(most, generator.max_len - 1)
        assert generator.min_len <= self.max_len, "min_len cannot be larger than max_len"
        encoder_out = model.encoder.forward_torchscript(net_input)
        self.steps = DecoderSteps(model.decoder, encoder_out)
        self.finished: list[list[dict]] = [[] for _ in tokens]
        self.sentences = list(range(len(tokens)))
        """that are not finished"""
        begin = self.eos if bos is None else bos
        self.words_RT = tokens.new_full((len(tokens), 1), begin)
        self.scores_RT: Tensor | None = None
        """sums of log-probabilities, after each word"""

    def run(self) -> list[list[dict]]:
        for step in range(self.max_len + 1):  # one more, for the end of the sentence
            found = self._candidates(self.steps.logits(self.words_RT[:, -1]), step)
            ends_SK = found.word_SK.eq(self.eos) & found.score_SK.ne(-math.inf)
            kept = self._finish(found, ends_SK, step)
            if not self.sentences:
                break
            self._go_on(found, ends_SK, kept)
        return [sorted(beam, key=lambda h: -float(h["score"])) for beam in self.finished]

    def _candidates(self, logits_RV: Tensor, step: int) -> Candidates:
        last = step >= self.max_len
        score_RK, word_RK = self._best_words(logits_RV, step < self.options.min_len, last)
        if self.scores_RT is not None:
            score_RK = score_RK + self.scores_RT[:, -1:]
        sentences, (rows, width) = len(self.sentences), score_RK.shape
        score_SK, index_SK = score_RK.view(sentences, -1).topk(
            min(2 * self.beam, rows // sentences * width)
        )
        first_S1 = torch.arange(0, rows, rows // sentences, device=index_SK.device).unsqueeze(1)
        row_SK = first_S1 + index_SK.div(width, rounding_mode="floor")
        return Candidates(score_SK, word_RK.view(sentences, -1).gather(1, index_SK), row_SK)

    def _best_words(self, logits_RV: Tensor, no_end: bool, last: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities and words."""
        logs_RV = logits_RV.log_softmax(1, dtype=torch.float32)
        if last:
            score_RK = logs_RV[:, self.eos : self.eos + 1]
            return score_RK, torch.full_like(score_RK, self.eos, dtype=torch.long)
        logs_RV[:, self.pad] = -math.inf
        if no_end:
            logs_RV[:, self.eos] = -math.inf
        score_RK, word_RK = best_of(logs_RV, 2 * self.beam)
        return score_RK.masked_fill(score_RK.isnan(), -math.inf), word_RK

    def _finish(self, found: Candidates, ends_SK: Tensor, step: int) -> list[int] | None:
        """Collect hypotheses that end among the best; which sentences go on, None: all of them."""
        places = ends_SK[:, : self.beam].nonzero()
        if not len(places):
            return None
        sentence, column = places.unbind(1)
        score = found.score_SK[sentence, column]
        words, sums = self._ended(found.row_SK[sentence, column], score)
        if self.options.normalize_scores:
            score = score / (step + 1) ** self.options.len_penalty
        done = set()
        for i, place in enumerate(sentence.tolist()):
            hypotheses = self.finished[self.sentences[place]]
            if len(hypotheses) < self.beam:
                hypotheses.append(
                    {
                        "tokens": words[i],
                        "score": score[i],
                        "attention": torch.empty(0),
                        "alignment": torch.empty(0),
                        "positional_scores": sums[i],
                    }
                )
            if len(hypotheses) == self.beam or step == self.max_len:
                done.add(place)
        if not done:
            return None
        kept = [place for place in range(len(self.sentences)) if place not in done]
        self.sentences = [self.sentences[place] for place in kept]
        return kept

    def _ended(self, rows: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Words and their log-probabilities, with the end of the sentence."""
        words = torch.cat((self.words_RT[rows, 1:], rows.new_full((len(rows), 1), self.eos)), 1)
        sums = score.unsqueeze(1)
        if self.scores_RT is not None:
            sums = torch.cat((self.scores_RT[rows], sums), 1)
        return words, torch.cat((sums[:, :1], sums[:, 1:] - sums[:, :-1]), 1)

    def _go_on(self, found: Candidates, ends_SK: Tensor, kept: list[int] | None) -> None:
        """With the best candidates that do not end."""
        kept_S = None
        if kept is not None:
            kept_S = torch.tensor(kept, device=ends_SK.device)
            found = Candidates(*(part.index_select(0, kept_S) for part in found))
            ends_SK = ends_SK.index_select(0, kept_S)
        places_K = torch.arange(ends_SK.size(1), device=ends_SK.device)
        order_SK = torch.where(ends_SK, places_K + ends_SK.size(1), places_K)
        _, active_SK = order_SK.topk(self.beam, 1, largest=False)
        score_R1, word_R1, row_R1 = (part.gather(1, active_SK).view(-1, 1) for part in found)
        rows_R = row_R1.squeeze(1)
        self.words_RT = torch.cat((self.words_RT.index_select(0, rows_R), word_R1), 1)
        before = [] if self.scores_RT is None else [self.scores_RT.index_select(0, rows_R)]
        self.scores_RT = torch.cat((*before, score_R1), 1)
        self.steps.go_on(rows_R, kept_S)


def best_of(scores_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores_RV.topk(k)`: the best k are in the k pieces with the best maxima."""
    rows, words = scores_RV.shape
    pieces = words // PIECE
    if pieces < 4 * k:
        return scores_RV.topk(k)
    whole = pieces * PIECE
    # Piece p has the words p, p + pieces, ...: all maxima are taken at once, column by column.
    scores_RWP = scores_RV[:, :whole].unflatten(1, (PIECE, pieces))
    _, piece_RK = scores_RWP.amax(1).topk(k)
    some_RWK = scores_RWP.gather(2, piece_RK.unsqueeze(1).expand(rows, PIECE, k))
    score_RK, place_RK = torch.cat((some_RWK.flatten(1), scores_RV[:, whole:]), 1).topk(k)
    inside_RK = place_RK.div(k, rounding_mode="floor") * pieces
    inside_RK += piece_RK.gather(1, place_RK.remainder(k))
    beyond_RK = place_RK - PIECE * k + whole
    return score_RK, torch.where(place_RK < PIECE * k, inside_RK, beyond_RK)


def install() -> None:
    """Under fairseq's name, which tasks look up when they build a generator."""
    sequence_generator.SequenceGenerator = SequenceGenerator

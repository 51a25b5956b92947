"""Our beam search against fairseq's: the same hypotheses, scores and order."""

from __future__ import annotations

import pytest
import torch
from fairseq import search
from fairseq_lstm import fairseq_lstm
from hybrid_lstm_reference import TinyTask, batch, tiny_model

import fairseq_hybrid  # noqa: F401  (binds the generator)
from fairseq_hybrid.generation import beam_search
from fairseq_hybrid.generation.beam_search import FairseqGenerator, SequenceGenerator, best_of

LENGTHS = [3, 9, 1, 5, 5, 7]
MODELS = {
    "plain": {},
    "feeding": {"input_feeding": True},
    "reads both ways, narrow": {"encoder_bidirectional_first": True, "decoder_out_embed_dim": 4},
    "shared, not residual": {"share_all_embeddings": True, "residual": False},
}
SEARCHES = {
    "beam 5": {"beam_size": 5},
    "greedy": {"beam_size": 1},
    "long": {"beam_size": 3, "min_len": 4, "max_len_a": 1, "max_len_b": 3},
    "short": {"beam_size": 4, "max_len_b": 1},
    "one word": {"beam_size": 2, "max_len_b": 0, "min_len": 0},
    "long ones are better": {"beam_size": 5, "len_penalty": 2.5},
    "sums": {"beam_size": 5, "normalize_scores": False},
}


def model_for(words: int = 60, seed: int = 0, **options):
    """A task and a random model whose translations end at different times."""
    task = TinyTask(words)
    model = tiny_model(task, seed=seed, **options).eval()
    for weight in model.parameters():
        weight.data.mul_(5.0)
    if model.decoder.head.output.bias is not None:
        model.decoder.head.output.bias.data[task.target_dictionary.eos()] += 2.5
    model.decoder.make_generation_fast_(need_attn=False)
    return task, model


def sample_of(task, tokens) -> dict:
    lengths = tokens.ne(task.source_dictionary.pad()).sum(1)
    return {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}


def both(task, model, tokens, ask=None, **options) -> tuple[list, list]:
    """What fairseq's generator finds, and ours."""
    options = {"max_len_b": 12, **options}
    generators = (
        kind([model], task.target_dictionary, **options)
        for kind in (FairseqGenerator, SequenceGenerator)
    )
    return tuple(g.generate([model], sample_of(task, tokens), **(ask or {})) for g in generators)


def compare(theirs: list, ours: list) -> None:
    assert [len(beam) for beam in ours] == [len(beam) for beam in theirs]
    for wanted, got in zip(theirs, ours):
        for want, mine in zip(wanted, got):
            assert torch.equal(mine["tokens"], want["tokens"])
            torch.testing.assert_close(mine["score"], want["score"], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                mine["positional_scores"], want["positional_scores"], rtol=1e-5, atol=1e-5
            )
            assert mine.keys() == want.keys()
            assert torch.equal(mine["attention"], want["attention"])


@pytest.fixture
def ours_alone(monkeypatch):
    """fairseq's loop runs for fairseq's class only."""
    theirs = FairseqGenerator._generate

    def generate(self, *args, **kwargs):
        assert type(self) is FairseqGenerator
        return theirs(self, *args, **kwargs)

    monkeypatch.setattr(FairseqGenerator, "_generate", generate)


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("how", SEARCHES)
@pytest.mark.parametrize("what", MODELS)
def test_hypotheses_are_fairseqs(what, how):
    for seed in range(3):
        task, model = model_for(seed=seed, **MODELS[what])
        tokens = batch(task, LENGTHS, left_pad=True, seed=seed)
        compare(*both(task, model, tokens, **SEARCHES[how]))
        compare(*both(task, model, tokens[:1], **SEARCHES[how]))


@pytest.mark.usefixtures("ours_alone")
def test_sentences_end_at_different_times():
    """What is compared above is no accident of one length."""
    found = []
    for seed in range(3):
        task, model = model_for(seed=seed)
        _, beams = both(task, model, batch(task, LENGTHS, left_pad=True, seed=seed), beam_size=5)
        found.append(len({max(len(h["tokens"]) for h in beam) for beam in beams}))
    assert max(found) > 2, found


@pytest.mark.usefixtures("ours_alone")
def test_a_large_vocabulary_and_another_first_word():
    task, model = model_for(words=3001)
    tokens = batch(task, LENGTHS)
    compare(*both(task, model, tokens, beam_size=4))
    compare(*both(task, model, tokens, {"bos_token": 7}, beam_size=4))
    compare(*both(task, model.float(), tokens, beam_size=4))


@pytest.mark.parametrize("words", [50, 64, 641, 5000, 33278])
@pytest.mark.parametrize("k", [2, 10])
def test_the_best_of_a_row(words, k):
    torch.manual_seed(words)
    scores = torch.randn(7, words)
    scores[3, 5:] = -torch.inf
    wanted = scores.topk(k)
    values, indices = best_of(scores.clone(), k)
    assert torch.equal(values, wanted.values)
    assert torch.equal(scores.gather(1, indices), values)
    assert all(len(set(row.tolist())) == k for row in indices[:3])


def fell_back(monkeypatch, task, models, ask=None, **options) -> bool:
    """Whether fairseq's loop has run."""
    ours = []
    monkeypatch.setattr(beam_search.Search, "run", lambda _: ours.append(1) or [])
    generator = SequenceGenerator(models, task.target_dictionary, max_len_b=8, **options)
    tokens = batch(task, sorted(LENGTHS, reverse=True))  # as fairseq's lstm wants it
    found = generator.generate(models, sample_of(task, tokens), **(ask or {}))
    assert len(found) == (0 if ours else len(LENGTHS))
    return not ours


def test_what_is_not_plain_beam_search_is_fairseqs(monkeypatch):
    task, model = model_for()
    words = task.target_dictionary
    assert not fell_back(monkeypatch, task, [model])
    assert fell_back(monkeypatch, task, [model, model])
    assert fell_back(monkeypatch, task, [model], {"prefix_tokens": torch.full((6, 1), 9)})
    for options in (
        {"unk_penalty": 1.0},
        {"temperature": 2.0},
        {"no_repeat_ngram_size": 2},
        {"match_source_len": True},
        {"tokens_to_suppress": ("w3",)},
        {"search_strategy": search.Sampling(words)},
        {"search_strategy": search.DiverseBeamSearch(words, 1, 0.5)},
        {"beam_size": 16},
    ):
        assert fell_back(monkeypatch, task, [model], **options), options
    model.decoder.need_attn = True
    assert fell_back(monkeypatch, task, [model])
    model.decoder.need_attn = False
    model.decoder.dropout_in.apply_during_inference = True
    assert fell_back(monkeypatch, task, [model])


def test_fairseqs_models_keep_fairseqs_search(monkeypatch):
    task = TinyTask(60)
    assert fell_back(monkeypatch, task, [fairseq_lstm(task, torch.float32)])

"""`--criterion sampled_softmax` on one device: against the full softmax, and its refusals."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.data import Dictionary

import fairseq_hybrid  # noqa: F401  (registers the models)
from fairseq_hybrid.criterions.sampled_softmax import (
    SampledSoftmaxConfig,
    SampledSoftmaxCriterion,
    validate_sample,
)
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models.hybrid_lstm import HybridLSTMModel
from fairseq_hybrid.models.hybrid_lstm_lm import HybridLSTMLanguageModel

WORDS = 60


def dictionary(counts: bool = True) -> Dictionary:
    words = Dictionary()
    for i in range(WORDS):
        words.add_symbol(f"w{i}", n=1000 // (i + 1) if counts else 1)
    return words


def config(**options) -> SampledSoftmaxConfig:
    cfg = SampledSoftmaxConfig(**{"sample_frequent": 5, "sample_random": 10, **options})
    cfg.sentence_avg, cfg.seed = False, 1
    return cfg


def criterion(**options) -> SampledSoftmaxCriterion:
    return SampledSoftmaxCriterion(
        config(**options), SimpleNamespace(target_dictionary=dictionary())
    )


def built(kind: type, side: str, **options):
    torch.manual_seed(3)
    words = dictionary()
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    sizes = {f"{side}_embed_dim": 8, f"{side}_hidden_size": 8}
    return kind.build_model(Namespace(dropout=0.0, **sizes, **options), task).double()


def language_model(**options):
    return built(HybridLSTMLanguageModel, "decoder", **options)


def translation_model(**options):
    return built(HybridLSTMModel, "encoder", **options)


def language_sample() -> dict:
    torch.manual_seed(4)
    tokens = torch.randint(4, WORDS + 4, (3, 6))
    target = tokens.roll(-1, 1)
    net_input = {"src_tokens": tokens[:, :], "src_lengths": torch.full((3,), 6)}
    return {"net_input": net_input, "target": target, "ntokens": 18}


def translation_sample() -> dict:
    torch.manual_seed(4)
    pad, eos = dictionary().pad(), dictionary().eos()
    src, target = torch.randint(4, WORDS + 4, (2, 3, 5))
    src[1, 4:] = pad
    target[:, -1] = eos
    target[2, 2:] = torch.tensor([eos, pad, pad])
    previous = target.roll(1, 1)
    previous[:, 0] = eos
    previous[2, 3] = pad
    net_input = {
        "src_tokens": src,
        "src_lengths": src.ne(pad).sum(1),
        "prev_output_tokens": previous,
    }
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(pad).sum())}


def full(model, sample) -> tuple[torch.Tensor]:
    """The loss over all words."""
    logits, extra = model(**sample["net_input"])
    targets = model.get_targets(sample, (logits, extra)).reshape(-1)
    pad = dictionary().pad()
    rows = logits.flatten(0, -2)
    return (F.cross_entropy(rows, targets, ignore_index=pad, reduction="sum"),)


def gradients(loss_of, model, sample) -> tuple[torch.Tensor, dict]:
    model.zero_grad()
    loss, *_ = loss_of(model, sample)
    loss.backward()
    grads = {
        name: p.grad.to_dense() if p.grad.is_sparse else p.grad.clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    return loss.detach(), grads


SYSTEMS = {
    "language model": (language_model, language_sample, {}),
    "shared embeddings": (
        language_model,
        language_sample,
        {"share_decoder_input_output_embed": True},
    ),
    "translation": (translation_model, translation_sample, {}),
    "translation, narrow output": (
        translation_model,
        translation_sample,
        {"decoder_out_embed_dim": 6},
    ),
    "translation, shared": (translation_model, translation_sample, {"share_all_embeddings": True}),
    "translation, input feeding": (translation_model, translation_sample, {"input_feeding": True}),
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("correction", ["logq", "none"])
def test_all_words_sampled_is_the_full_softmax(name, correction):
    make, sample, options = SYSTEMS[name]
    model, sample = make(**options), sample()
    expected_loss, expected = gradients(full, model, sample)
    ours = criterion(sample_frequent=WORDS, sample_random=0, sample_correction=correction)
    loss, got = gradients(ours, model, sample)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=0)
    assert got.keys() == expected.keys()
    for parameter in expected:
        torch.testing.assert_close(got[parameter], expected[parameter], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["language model", "translation, shared"])
def test_gradients_have_the_samples_rows_only(name):
    make, sample, options = SYSTEMS[name]
    model, sample = make(**options), sample()
    loss, _, log = criterion()(model, sample)
    loss.backward()
    weight, bias = model.softmax_parameters()
    touched = weight.grad.coalesce().indices()[0]
    inputs = {"language model": set()}.get(
        name,
        {
            w
            for part in sample["net_input"].values()
            if part.dim() > 1
            for w in part.unique().tolist()
        },
    )
    targets = set(sample["target"].unique().tolist())
    assert targets <= set(touched.tolist())
    assert len(set(touched.tolist()) - inputs) <= log["words"] < WORDS
    if bias is not None:
        assert bias.grad.is_sparse


def test_validation_is_over_all_words():
    model, sample, ours = language_model(), language_sample(), criterion()
    model.eval()
    ours.eval()
    torch.testing.assert_close(ours(model, sample)[0], full(model, sample)[0])
    ours.train()
    assert ours(model.train(), sample)[0] != full(model, sample)[0]


def test_padding_does_not_count():
    model, sample = translation_model(), translation_sample()
    assert criterion()(model, sample)[1] == sample["ntokens"]
    model, sample = language_model(), language_sample()
    sample["target"][1, 3:] = dictionary().pad()
    ours = criterion(sample_frequent=WORDS, sample_random=0, label_smoothing=0.0)
    torch.testing.assert_close(ours(model, sample)[0], full(model, sample)[0])


def smoothed(model, sample) -> tuple[torch.Tensor]:
    """fairseq's label smoothing, over all words."""
    logits, extra = model(**sample["net_input"])
    targets = model.get_targets(sample, (logits, extra)).reshape(-1)
    logs = logits.flatten(0, -2).log_softmax(1)
    return (label_smoothed_nll_loss(logs, targets, 0.2, ignore_index=dictionary().pad())[0],)


@pytest.mark.parametrize("name", ["language model", "translation", "translation, shared"])
@pytest.mark.parametrize("correction", ["logq", "none"])
def test_label_smoothing_is_fairseqs_if_all_words_are_there(name, correction):
    make, sample, options = SYSTEMS[name]
    model, sample = make(**options), sample()
    expected_loss, expected = gradients(smoothed, model, sample)
    every = dict(sample_frequent=WORDS, sample_random=0, sample_correction=correction)
    loss, got = gradients(criterion(label_smoothing=0.2, **every), model, sample)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-9, atol=0)
    for parameter in expected:
        torch.testing.assert_close(got[parameter], expected[parameter], rtol=1e-9, atol=1e-11)


def test_a_sample_smooths_like_all_words_on_average():
    """Far from flat scores, where it matters what stands for the words that are not there."""
    model, sample = language_model(), language_sample()
    model.decoder.output_bias.data += torch.linspace(0, -5, WORDS + 4)[:, None]

    def mean(correction: str) -> float:
        ours = criterion(sample_correction=correction, label_smoothing=0.2)
        losses = []
        for update in range(200):
            model.set_num_updates(update)
            losses.append(ours(model, sample)[0].item())
        return sum(losses) / len(losses)

    true, sharp = smoothed(model, sample)[0].item(), full(model, sample)[0].item()
    assert abs(mean("logq") - true) < 0.2 * abs(true - sharp)


def test_another_update_another_sample():
    model, sample, ours = language_model(), language_sample(), criterion()
    losses = []
    for update in (0, 0, 1):  # twice in update 0: --update-freq
        model.set_num_updates(update)
        losses.append(ours(model, sample)[0].item())
    again = criterion()
    model.set_num_updates(1)  # as after a resume
    assert len(set(losses)) == 3
    assert again(model, sample)[0].item() == losses[2]


def test_the_corrected_loss_is_nearer_to_the_full_one():
    model, sample = language_model(), language_sample()
    true = full(model, sample)[0].item()

    def mean(correction: str) -> float:
        ours, losses = criterion(sample_correction=correction), []
        for update in range(200):
            model.set_num_updates(update)
            losses.append(ours(model, sample)[0].item())
        return sum(losses) / len(losses)

    assert abs(mean("logq") - true) < 0.02 * true
    assert mean("none") < 0.95 * true


@pytest.mark.parametrize(
    ("options", "counts", "message"),
    [
        ({"sample_random": 100}, True, "--sample-random 100 are more than .* 60 words: lower them"),
        ({"sample_random": -5}, True, "--sample-random -5 is not a number of words"),
        ({}, False, "no counts .*: make it with fairseq-preprocess, or use --sample-frequent 0"),
    ],
)
def test_a_sample_that_cannot_be_drawn_is_refused(options, counts, message):
    with pytest.raises(UserError, match=message):
        validate_sample(config(**options), dictionary(counts))
    uniform = config(sample_frequent=0, sample_distribution="uniform")
    validate_sample(uniform, dictionary(counts=False))

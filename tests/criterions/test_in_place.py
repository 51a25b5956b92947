"""Cross-entropy in place against fairseq's criterions: loss, log and gradients, in float64."""

from __future__ import annotations

import math
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq import criterions, utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq_lstm import fairseq_lstm
from hybrid_lstm_reference import TinyTask, batch, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

import fairseq_hybrid  # noqa: F401  (registers models and criterions)
from fairseq_hybrid.criterions import cross_entropy, in_place
from fairseq_hybrid.models.feedforward_lm import FeedforwardLanguageModel
from fairseq_hybrid.models.hybrid_lstm_lm import HybridLSTMLanguageModel
from fairseq_hybrid.models.late_gradients import LateGradients

TASK = TinyTask(40)
PAD, EOS = TASK.target_dictionary.pad(), TASK.target_dictionary.eos()
WORDS = len(TASK.target_dictionary)


def translation(**options):
    return tiny_model(TASK, **options), translation_sample()


def translation_sample() -> dict:
    previous = batch(TASK, (5, 2, 7), eos_first=True, seed=3)
    target = torch.full_like(previous, PAD)
    for row, new in zip(previous, target):
        words = row[row != PAD]
        new[: len(words)] = torch.cat((words[1:], words[:1]))
    net_input = {
        "src_tokens": batch(TASK, (6, 4, 1), left_pad=True),
        "src_lengths": torch.tensor((6, 4, 1)),
        "prev_output_tokens": previous,
    }
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum())}


def language(kind=HybridLSTMLanguageModel, **options):
    torch.manual_seed(2)
    sizes = dict(decoder_embed_dim=8, decoder_hidden_size=8, dropout=0.0)
    task = SimpleNamespace(
        source_dictionary=TASK.source_dictionary, target_dictionary=TASK.target_dictionary
    )
    model = kind.build_model(Namespace(**(sizes | options)), task).double()
    words = batch(TASK, (6, 6, 4), eos_first=True)
    target = words.roll(-1, 1)
    target[words == PAD] = PAD
    target[2, 3] = EOS
    net_input = {"src_tokens": words, "src_lengths": torch.tensor((6, 6, 4))}
    sample = {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum())}
    return model, sample


PREFIX = {"ignore_prefix_size": 2}
MODELS = {
    "translation": translation,
    "feeding": lambda: translation(input_feeding=True),
    "shared embeddings": lambda: translation(share_all_embeddings=True),
    "narrow output": lambda: translation(decoder_out_embed_dim=4),
    "language model": language,
    "its embeddings shared": lambda: language(share_decoder_input_output_embed=True),
    "feed-forward": lambda: language(FeedforwardLanguageModel),
}
CRITERIONS = {
    "plain": (CrossEntropyCriterion, False),
    "plain, by sentence": (CrossEntropyCriterion, True),
    "smoothed": (LabelSmoothedCrossEntropyCriterion, False, 0.1),
    "not smoothed": (LabelSmoothedCrossEntropyCriterion, False, 0.0),
    "by sentence, accuracy": (LabelSmoothedCrossEntropyCriterion, True, 0.1, 0, True),
}


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """fairseq's criterions compute in float32, whatever the model does: not so here."""
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, onnx_trace=False: x.log_softmax(dim))


@pytest.fixture(
    params=[(in_place.ROOM, 1024), (3 * 8 * WORDS, 1024), (in_place.ROOM, 0)],
    ids=["one buffer", "blocks of three rows", "wide rows"],
)
def room(request, monkeypatch):
    room, narrow = request.param
    monkeypatch.setattr(in_place, "NARROW", narrow)
    defaults = in_place.How._field_defaults | {"room": room}
    monkeypatch.setattr(in_place.How.__new__, "__defaults__", tuple(defaults.values()))


def ours(kind: type) -> type:
    name = {CrossEntropyCriterion: "cross_entropy"}.get(kind, "label_smoothed_cross_entropy")
    return criterions.CRITERION_REGISTRY[name]


def one_update(criterion, model, sample) -> tuple[dict, dict]:
    """What is logged, and the gradients."""
    model.zero_grad()
    loss, size, log = criterion(model, sample)
    (loss * 3).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {**log, "loss": loss.detach(), "size": size}, grads


def compare(got: tuple[dict, dict], wanted: tuple[dict, dict]) -> None:
    for mine, theirs in zip(got, wanted):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            close = dict(rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(
                torch.as_tensor(mine[name]), torch.as_tensor(value), **close, msg=name
            )


def never(*_, **__):
    raise AssertionError("fairseq's scores of all words have been asked for")


@pytest.mark.parametrize("name", CRITERIONS)
@pytest.mark.parametrize("what", MODELS)
def test_loss_log_and_gradients_are_fairseqs(what, name, room, monkeypatch):
    model, sample = MODELS[what]()
    kind, *options = CRITERIONS[name]
    wanted = one_update(kind(TASK, *options), model, sample)
    monkeypatch.setattr(model, "get_normalized_probs", never)
    compare(one_update(ours(kind)(TASK, *options), model, sample), wanted)


@pytest.mark.parametrize(
    "make", [lambda: translation(**PREFIX), language], ids=["translation", "language model"]
)
def test_a_prefix_is_ignored(make, room):
    options = (False, 0.1, *PREFIX.values(), True)
    model, sample = make()
    wanted = one_update(LabelSmoothedCrossEntropyCriterion(TASK, *options), model, sample)
    got = one_update(ours(LabelSmoothedCrossEntropyCriterion)(TASK, *options), model, sample)
    compare(got, wanted)
    everything = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)
    assert wanted[0]["loss"] < one_update(everything, model, sample)[0]["loss"]


@pytest.mark.parametrize("name", CRITERIONS)
def test_validation_logs_the_same(name, room):
    model, sample = translation()
    model.eval()
    kind, *options = CRITERIONS[name]
    with torch.no_grad():
        _, size, wanted = kind(TASK, *options)(model, sample)
        loss, mine, got = ours(kind)(TASK, *options)(model, sample)
    assert not loss.requires_grad
    compare((got, {"size": mine}), (wanted, {"size": size}))


def test_checkpoints_of_fairseqs_criterions_are_gone_on_with():
    for kind in (CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion):
        assert ours(kind) is not kind
        assert ours(kind).__name__ == kind.__name__  # what a checkpoint has


def test_fairseqs_models_keep_fairseqs_code(monkeypatch):
    monkeypatch.setattr(in_place, "cross_entropy", never)
    model, sample = fairseq_lstm(TASK), translation_sample()
    compare(
        one_update(ours(CrossEntropyCriterion)(TASK, False), model, sample),
        one_update(CrossEntropyCriterion(TASK, False), model, sample),
    )


def wrapped(**about):
    """As fairseq's proxy shows a model."""
    model, _ = translation()
    wrapper = SimpleNamespace(module=model, **about)
    return SimpleNamespace(module=wrapper, has_plain_softmax=model.has_plain_softmax)


def test_who_looks_at_the_output_layer_sees_it():
    model, _ = translation()
    assert cross_entropy.tells_features(model)
    model.decoder.head.output.register_forward_hook(lambda *_: None)
    assert not cross_entropy.tells_features(model)
    assert cross_entropy.tells_features(wrapped(find_unused_parameters=False))
    assert not cross_entropy.tells_features(wrapped(find_unused_parameters=True))
    adaptive, _ = language(adaptive_softmax_cutoff="20")
    assert not cross_entropy.tells_features(adaptive)


# The function itself


def inputs(dtype=torch.float64, rows: int = 7, words: int = 11) -> list[torch.Tensor]:
    torch.manual_seed(1)
    made = [torch.randn(*shape, dtype=dtype) for shape in ((rows, 5), (words, 5), (words,))]
    target = torch.randint(words, (rows,))
    target[2] = PAD
    return [*(x.requires_grad_() for x in made), target]


def plain(x, weight, bias, target, smoothing):
    """As it is written down."""
    logs = F.linear(x, weight, bias).log_softmax(1)
    other = smoothing / (len(weight) - 1)
    losses = -(1 - smoothing - other) * logs.gather(1, target[:, None])[:, 0] - other * logs.sum(1)
    return losses[target != PAD].sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "narrow"), [(100, 11), (100, 0), (3, 11), (1, 0)])
def test_gradients_are_those_of_finite_differences(smoothing, rows, narrow, monkeypatch):
    monkeypatch.setattr(in_place, "NARROW", narrow)
    *parameters, target = inputs()
    how = in_place.How(PAD, smoothing, room=rows * 8 * 11)

    def loss(*args):
        return in_place.cross_entropy(*args, target, how).loss

    torch.testing.assert_close(loss(*parameters), plain(*parameters, target, smoothing))
    assert torch.autograd.gradcheck(loss, parameters)
    assert torch.autograd.gradcheck(lambda x, weight: loss(x, weight, None), parameters[:2])
    frozen = parameters[1].detach()
    assert torch.autograd.gradcheck(lambda x: loss(x, frozen, None), parameters[:1])


def test_wide_rows_smoothed_unequally_as_narrow_ones(monkeypatch):
    *parameters, target = inputs()
    how = in_place.How(PAD, 0.1, vocabulary=20, others_V=torch.rand(11, dtype=torch.float64))
    found = []
    for narrow in (0, 11):
        monkeypatch.setattr(in_place, "NARROW", narrow)
        loss, nll, _ = in_place.cross_entropy(*parameters, target, how)
        found.append((loss, nll, *torch.autograd.grad(loss, parameters)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("scale", [1.0, 128.0])
@pytest.mark.parametrize("rows", [100, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_its_type(dtype, rows, scale):
    *lower, target = inputs(dtype)
    exact = [x.detach().double().requires_grad_() for x in lower]
    how = in_place.How(PAD, 0.1, room=rows * 2 * 11)
    loss = in_place.cross_entropy(*lower, target, how).loss
    assert loss.dtype == torch.float32
    (loss * scale).backward()
    wanted = plain(*exact, target, 0.1)
    (wanted * scale).backward()
    eps = torch.finfo(dtype).eps
    assert math.isclose(loss.item(), wanted.item(), rel_tol=2 * eps)
    for mine, theirs in zip(lower, exact):
        assert mine.grad.dtype == dtype
        assert (mine.grad - theirs.grad).norm() < 2 * eps * theirs.grad.norm()


def test_under_autocast_gradients_are_of_the_weights_type():
    *parameters, target = inputs(torch.float32)
    wanted = torch.autograd.grad(plain(*parameters, target, 0.1), parameters)
    late = LateGradients()
    how, asked = in_place.How(PAD, 0.1), late.of(parameters[1])
    with torch.autocast("cpu", torch.bfloat16):
        loss = in_place.cross_entropy(*parameters, target, how, asked).loss
    got = torch.autograd.grad(loss, parameters)
    assert not late.left
    for mine, theirs in zip(got, wanted):
        assert mine.dtype == torch.float32
        assert 0 < (mine - theirs).norm() < 0.03 * theirs.norm()


def test_the_weights_gradient_can_come_late():
    *parameters, target = inputs()
    wanted = torch.autograd.grad(plain(*parameters, target, 0.1), parameters)
    (x, weight, bias), late = parameters, LateGradients()
    how = in_place.How(PAD, 0.1)
    (2 * in_place.cross_entropy(*parameters, target, how, late.of(weight)).loss).backward()
    assert weight.grad is None
    torch.testing.assert_close((x.grad / 2, bias.grad / 2), wanted[::2])
    late.compute()
    torch.testing.assert_close(weight.grad / 2, wanted[1])


def test_a_worker_without_rows_goes_backward_all_the_same():
    x, weight, bias, target = inputs()
    loss, nll, correct = in_place.cross_entropy(
        x[:0], weight, bias, target[:0], in_place.How(PAD, 0.1, accuracy=True)
    )
    loss.backward()
    assert (loss.item(), nll.item(), correct.item()) == (0, 0, 0)
    assert x.grad.abs().sum() == 0
    assert weight.grad is None


class Buffers(TorchDispatchMode):
    """Counts the tensors that are made, from some size on."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.made = size, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if torch.is_tensor(tensor) and tensor.numel() >= self.size:
                self.made.add(tensor.untyped_storage().data_ptr())
        return result


@pytest.mark.parametrize(("room", "wide"), [(in_place.ROOM, 1), (100 * 8 * 50, 0)])
def test_one_buffer_as_large_as_the_logits_or_none(room, wide, monkeypatch):
    monkeypatch.setattr(in_place, "STRIP", 50 * 50)
    *parameters, target = inputs(rows=1000, words=50)
    with Buffers(1000 * 50) as seen:
        in_place.cross_entropy(
            *parameters, target, in_place.How(PAD, 0.1, room=room)
        ).loss.backward()
    assert len(seen.made) == wide
    with Buffers(1000 * 50) as seen:
        plain(*parameters, target, 0.1).backward()
    assert len(seen.made) > 2

"""`hybrid_lstm_lm` against a plain reference, in pieces and as a whole."""

import copy
import math
from argparse import Namespace

import language_models as promised
import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from hybrid_lstm_reference import TinyTask, batch, cell
from language_models import DTYPE, PAD, assert_same, gradients, ramp, tokens
from torch import nn

from fairseq_hybrid.models.hybrid_lstm_lm import HybridLSTMLanguageModel, log_frequencies
from fairseq_hybrid.models.locked_lstm import LockedDropout, WordDropout

VARIANTS = {
    "plain": {},
    "narrow_output": {"decoder_out_embed_dim": 4},
    "three_layers": {"decoder_layers": 3, "decoder_hidden_size": 7},
    "one_layer": {"decoder_layers": 1},
    "shared": {"share_decoder_input_output_embed": True},
}
ADAPTIVE = {"adaptive_softmax_cutoff": "6,9", "decoder_out_embed_dim": 16}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())


def tiny_model(task=None, dtype=DTYPE, **options) -> HybridLSTMLanguageModel:
    sizes = dict(decoder_embed_dim=5, decoder_hidden_size=6, decoder_layers=2, dropout=0.0)
    torch.manual_seed(0)
    model = HybridLSTMLanguageModel.build_model(Namespace(**(sizes | options)), task or TinyTask())
    for name, weight in model.named_parameters():
        if "embed_tokens" not in name:
            nn.init.uniform_(weight, -0.5, 0.5)  # larger than in practice: errors show
    return model.to(dtype)


def reference(model, words, states=None):
    """Features [T, d], logits [T, V] and states of one sequence, by `nn.LSTMCell`, word by word."""
    decoder = model.decoder
    cells = [cell(layer.lstm) for layer in decoder.layers]
    states = states or [None] * len(cells)
    features = []
    for word in words:
        x = decoder.embed_tokens.weight[word][None]
        for i, lstm_cell in enumerate(cells):
            states[i] = lstm_cell(x, states[i])
            x = states[i][0]
        features.append(x[0])
    features = torch.stack(features)
    weight, bias = model.softmax_parameters()
    return features, features @ weight.t() + bias[:, 0], states


# --- values and gradients -----------------------------------------------------------------------


@variants
def test_outputs_and_every_gradient_match_the_reference(options):
    """Right-padded rows: what stands on real words does not depend on the padding."""
    model = tiny_model(**options)
    promised.gradients_match(model, tokens(5, 2, 7), lambda words: reference(model, words)[1])


@variants
def test_float32_kernels_agree_with_float64(options):
    """float32 on CPU takes other kernels (oneDNN) than float64."""
    words = tokens(6, 6, 6)
    expected, _ = tiny_model(**options)(words)
    logits, _ = tiny_model(dtype=torch.float32, **options)(words)
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=1e-5)


@variants
def test_features_times_softmax_parameters_are_the_logits(options):
    shared = options.get("share_decoder_input_output_embed", False)
    model, words = tiny_model(**options), tokens(4, 6)
    assert promised.features_make_the_logits(model, words, shared).is_contiguous()


@pytest.mark.parametrize("options", [{}, {"word_dropout": 0.5}, VARIANTS["shared"]])
def test_row_gradients_are_the_dense_ones(options):
    words, found = tokens(5, 7), []
    for sparse in (False, True):
        model = tiny_model(**options)
        if sparse:
            model.use_row_gradients()
        torch.manual_seed(7)
        features, _ = model(words, features_only=True)
        (features * ramp(features)).sum().backward()
        gradient = model.decoder.embed_tokens.weight.grad
        assert gradient.is_sparse == sparse
        assert gradient.to_dense().abs().sum() > 0
        found.append(gradients(model))
    assert_same(found[1], found[0])


def test_number_of_updates_is_kept():
    promised.keeps_the_number_of_updates(tiny_model())


# --- carried state ------------------------------------------------------------------------------


def blocks(model, words, length, fresh_first=True):
    """Logits of all of `words`, read in blocks of `length` as one stream per row."""
    parts = []
    for i in range(0, words.size(1), length):
        fresh = torch.full((words.size(0),), fresh_first and i == 0)
        parts.append(model(words[:, i : i + length], fresh=fresh)[0])
    return torch.cat(parts, 1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("length", [1, 4])
def test_blocks_with_carried_state_are_one_long_block(training, length):
    model, words = tiny_model().train(training), tokens(8, 8, 8)
    whole, _ = model(words)
    torch.testing.assert_close(blocks(model, words, length), whole, rtol=0, atol=1e-10)
    again = blocks(model, words, length)  # fresh: nothing is left of the first time
    torch.testing.assert_close(again, whole, rtol=0, atol=1e-10)
    separate = torch.cat([model(words[:, i : i + 4])[0] for i in (0, 4)], 1)
    assert not torch.allclose(separate, whole, atol=1e-3)


def test_streams_that_begin_in_the_middle_start_from_zeros():
    model, words = tiny_model(), tokens(8, 8)
    model(words[:, :4], fresh=torch.tensor([True, True]))
    # What is broken for good must not get into a new stream either.
    model.decoder._carried[True] = [
        tuple(s.index_fill(0, torch.tensor([1]), float("nan")) for s in state)
        for state in model.decoder._carried[True]
    ]
    logits, _ = model(words[:, 4:], fresh=torch.tensor([False, True]))
    torch.testing.assert_close(logits[0], model(words)[0][0, 4:])
    torch.testing.assert_close(logits[1], model(words[:, 4:])[0][1])


def test_gradient_stops_between_blocks():
    model, words = tiny_model(), tokens(8, 8)
    logits = blocks(model, words[:, :4], 4)
    (logits * ramp(logits)).sum().backward()
    model.zero_grad()
    logits, _ = model(words[:, 4:], fresh=torch.zeros(2, dtype=torch.bool))
    (logits * ramp(logits)).sum().backward()
    ours = gradients(model)
    model.zero_grad()
    loss = 0.0
    for row, weights in zip(words, ramp(logits)):
        with torch.no_grad():
            _, _, states = reference(model, row[:4])
        loss = loss + (reference(model, row[4:], states)[1] * weights).sum()
    loss.backward()
    assert_same(ours, gradients(model))


def test_validation_between_two_updates_changes_nothing():
    model, words, others = tiny_model(), tokens(8, 8), tokens(4, 4, 4, seed=5)
    whole, _ = model(words)
    begin, go_on = torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)
    model(words[:, :4], fresh=begin)
    model.eval()
    blocks(model, others, 2)
    model(others)
    model.train()
    model(others)  # without `fresh`: not of this stream
    logits, _ = model(words[:, 4:], fresh=go_on)
    torch.testing.assert_close(logits, whole[:, 4:], rtol=0, atol=1e-10)


def test_batch_that_shrinks_goes_on_with_its_first_rows_one_that_grows_starts_anew():
    model, words = tiny_model().eval(), tokens(6, 6, 6)
    whole, _ = model(words)
    model(words[:, :3], fresh=torch.ones(3, dtype=torch.bool))
    logits, _ = model(words[:2, 3:], fresh=torch.zeros(2, dtype=torch.bool))
    torch.testing.assert_close(logits, whole[:2, 3:], rtol=0, atol=1e-10)
    logits, _ = model(words, fresh=torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-10)
    model(words, fresh=torch.zeros(3, dtype=torch.bool))
    model.float()
    logits, _ = model(words, fresh=torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(logits.double(), whole, rtol=0, atol=1e-5)


def test_state_is_no_part_of_the_model():
    model, words = tiny_model(), tokens(4, 4)
    names = set(model.state_dict())
    model(words, fresh=torch.ones(2, dtype=torch.bool))
    assert set(model.state_dict()) == names
    copy.deepcopy(model)(words, fresh=torch.zeros(2, dtype=torch.bool))


# --- dropout ------------------------------------------------------------------------------------


def test_locked_mask_is_constant_over_time():
    torch.manual_seed(1)
    p, x = 0.3, torch.ones(6, 200, 300)
    y = LockedDropout(p)(x)
    assert torch.equal(y, y[:1].expand_as(y))
    kept, n = y[0] != 0, y[0].numel()
    assert abs(kept.sum().item() / n - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    assert y[0][kept].unique().tolist() == pytest.approx([1 / (1 - p)], rel=1e-4)
    for axis in (0, 1):  # neither whole sequences nor whole features are dropped together
        assert kept.float().mean(axis).std() < 0.05
    assert LockedDropout(p).eval()(x) is x


def test_word_dropout_drops_all_of_a_word_everywhere():
    torch.manual_seed(1)
    p, vocabulary = 0.3, 5000
    words = torch.randint(vocabulary, (40, 500))
    y = WordDropout(p)(torch.ones(40, 500, 3), words, vocabulary)
    assert torch.equal(y, y[..., :1].expand_as(y))
    dropped = torch.zeros(vocabulary).index_put((words,), (y[..., 0] == 0).float())
    assert torch.equal(y[..., 0] == 0, dropped[words] == 1)
    seen = words.unique()
    error = 5 * (p * (1 - p) / seen.numel()) ** 0.5
    assert abs(dropped[seen].mean().item() - p) < error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_dropout_is_that_of_a_model_with_fewer_weights(dtype):
    model, words = tiny_model(dtype=dtype, weight_dropout=0.5), tokens(6, 6)
    torch.manual_seed(3)
    logits, _ = model(words)
    (logits * ramp(logits)).sum().backward()
    torch.manual_seed(3)
    thinned = tiny_model(dtype=dtype)
    torch.manual_seed(3)
    for layer, thin in zip(model.decoder.layers, thinned.decoder.layers):
        thin.lstm.weight_hh_l0.data = layer.weight_dropout(layer.lstm.weight_hh_l0).detach()
        dropped = thin.lstm.weight_hh_l0 == 0
        assert 0.2 < dropped.float().mean() < 0.8
        assert layer.lstm.weight_hh_l0.grad[dropped].abs().sum() == 0
        assert (layer.lstm.weight_hh_l0.grad[~dropped] != 0).all()
    torch.testing.assert_close(logits, thinned(words)[0], rtol=0, atol=1e-5)


ALL_DROPOUTS = (
    *("decoder_dropout_in", "decoder_dropout_hidden", "decoder_dropout_out"),
    *("word_dropout", "weight_dropout"),
)


@pytest.mark.parametrize("name", ALL_DROPOUTS)
def test_each_dropout_is_on_in_training_and_off_in_evaluation(name):
    model, words = tiny_model(**{name: 0.5}), tokens(6, 6, 6)
    dry, _ = tiny_model()(words)
    torch.manual_seed(1)
    logits, _ = model(words)
    assert not torch.allclose(logits, dry, atol=1e-3)
    torch.manual_seed(1)
    assert torch.equal(model(words)[0], logits)
    assert torch.equal(model.eval()(words)[0], dry)


def test_dropout_with_fixed_masks_has_the_right_gradient():
    model = tiny_model(dropout=0.4, word_dropout=0.2, weight_dropout=0.4)
    words = tokens(6, 6, 6)

    def loss():
        torch.manual_seed(5)
        logits, _ = model(words)
        return (logits * ramp(logits)).sum()

    promised.gradients_are_differences(model, loss)


# --- generation ---------------------------------------------------------------------------------


@variants
def test_incremental_decoding_equals_the_whole_forward(options):
    model, words = tiny_model(**options).eval(), tokens(6, 6, 6)
    promised.decodes_word_by_word(model)
    whole, _ = model(words)
    state = {}
    prefix, _ = model.decoder(words[:, :4], incremental_state=state)
    torch.testing.assert_close(prefix, whole[:, :4], rtol=0, atol=1e-10)
    order = torch.tensor([2, 0, 0, 1])
    model.decoder.reorder_incremental_state_scripting(state, order)
    step, _ = model.decoder(words[order, :5], incremental_state=state)
    torch.testing.assert_close(step[:, 0], whole[order, 4], rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{}, ADAPTIVE], ids=["full", "adaptive"])
def test_scores_of_beam_search_are_those_of_the_forward_pass(options):
    task = TinyTask()
    model = tiny_model(task, dtype=torch.float32, **options).eval()
    promised.beam_search_scores_as_forward(task, model)


# --- softmax ------------------------------------------------------------------------------------


def test_cross_entropy_is_that_of_the_targets():
    task = TinyTask()
    promised.loss_is_that_of_the_targets(task, tiny_model(task))


def test_adaptive_softmax_is_one():
    """Probabilities sum to one, and adaptive_loss is what they say of the targets."""
    task, words = TinyTask(), tokens(4, 6)
    model = tiny_model(task, **ADAPTIVE)
    target = batch(task, (4, 6), seed=2)
    # fairseq's loss takes the second word of every cluster for padding.
    target = target.where((target != 7) & (target != 10), 8)
    assert {0, 1, 2} == {int(t > 5) + int(t > 8) for t in target.unique()}  # all clusters
    output = model(words)
    assert output[0].shape == (2, 6, 16)
    log_probs = model.get_normalized_probs(output, log_probs=True)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 6, dtype=DTYPE))
    sample = {"net_input": {"src_tokens": words}, "target": target}
    loss, _, _ = AdaptiveLoss(task, False)(model, sample)
    real = target.ne(PAD)
    expected = -log_probs.gather(2, target[..., None])[..., 0][real].sum()
    torch.testing.assert_close(loss[0], expected)
    with pytest.raises(ValueError, match="--adaptive-softmax-cutoff"):
        model.softmax_parameters()


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decoder_layers": 0}, "--decoder-layers 0"),
        ({"decoder_embed_dim": 0}, "--decoder-embed-dim 0"),
        ({"decoder_hidden_size": -1}, "--decoder-hidden-size -1"),
        ({"decoder_out_embed_dim": 0}, "--decoder-out-embed-dim 0"),
        *(({name: 1.0}, f"--{name.replace('_', '-')} 1.0") for name in ("dropout", *ALL_DROPOUTS)),
        ({"word_dropout": -0.1}, "--word-dropout -0.1"),
        ({"decoder_layers": 1, "decoder_out_embed_dim": 4}, "--decoder-hidden-size (6)"),
        (
            {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 4},
            "--decoder-out-embed-dim (4)",
        ),
        (
            {"share_decoder_input_output_embed": True, "adaptive_softmax_cutoff": "6"},
            "--adaptive-softmax-cutoff 6",
        ),
        ({"adaptive_softmax_cutoff": "6;9"}, "--adaptive-softmax-cutoff 6;9"),
        ({"adaptive_softmax_cutoff": "9,6"}, "--adaptive-softmax-cutoff 9,6"),
        ({"adaptive_softmax_cutoff": "6,99"}, "--adaptive-softmax-cutoff 6,99"),
        ({"adaptive_softmax_cutoff": "6,9"}, "--decoder-out-embed-dim 6"),
        ({"criterion": "adaptive_loss"}, "--adaptive-softmax-cutoff"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, says):
    promised.refuses_in_one_line(tiny_model, options, says)


def test_sharing_needs_as_many_words_out_as_in():
    promised.shares_only_as_many_words_out_as_in(tiny_model)


def test_length_is_not_limited_by_the_blocks_of_training():
    promised.has_no_length_of_its_own(tiny_model)


@pytest.mark.parametrize(
    ("arch", "sizes", "dropouts"),
    [
        ("hybrid_lstm_lm", (256, 256, 256, 2), (0.2, 0.2, 0.2, 0.0, 0.0)),
        ("hybrid_lstm_lm_awd", (400, 1150, 400, 3), (0.65, 0.2, 0.4, 0.1, 0.5)),
    ],
)
def test_architectures(arch, sizes, dropouts):
    assert ARCH_MODEL_REGISTRY[arch] is HybridLSTMLanguageModel
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    names = ("embed_dim", "hidden_size", "out_embed_dim", "layers")
    assert tuple(getattr(args, f"decoder_{n}") for n in names) == sizes
    assert tuple(getattr(args, n) for n in ALL_DROPOUTS) == dropouts
    assert all(isinstance(v, (int, float, bool, type(None))) for v in vars(args).values())
    given = Namespace(decoder_embed_dim=64, share_decoder_input_output_embed=True, dropout=0.3)
    ARCH_CONFIG_REGISTRY[arch](given)
    assert (given.decoder_out_embed_dim, given.decoder_dropout_out) == (64, 0.3)


def test_the_output_bias_starts_from_the_words_frequencies():
    words = Dictionary()
    for word, count in (("the", 60), ("a", 30), ("rare", 10)):
        words.add_symbol(word, n=count)
    bias = log_frequencies(words)
    assert bias[words.index("the")] - bias[words.index("rare")] == pytest.approx(math.log(6))
    assert bias.exp().sum().item() == pytest.approx(1)
    assert bias[words.eos()] - bias[words.index("the")] == pytest.approx(math.log(0.01 * 100 / 60))
    no_counts = Dictionary()
    for word in ("the", "a"):
        no_counts.add_symbol(word)
    assert log_frequencies(no_counts).count_nonzero() == 0

"""`feedforward_lm` against a loop over positions, in pieces and through the real commands."""

from __future__ import annotations

import re
from argparse import Namespace

import language_models as promised
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from hybrid_lstm_reference import TinyTask
from jobs import USER_DIR, curve, train_command
from language_models import DTYPE, EOS, PAD, ramp, tokens
from torch import nn
from warm import Warm

from fairseq_hybrid.models.feedforward_lm import FeedforwardLanguageModel

VARIANTS = {
    "plain": {},
    "bigram": {"ngram": 2},
    "relu": {"activation": "relu"},
    "narrow_output": {"decoder_out_embed_dim": 4},
    "three_layers": {"hidden_layers": 3, "hidden_size": 7},
    "one_layer": {"hidden_layers": 1},
    "shared": {"share_decoder_input_output_embed": True},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())


def tiny_model(task=None, **options) -> FeedforwardLanguageModel:
    sizes = dict(ngram=4, decoder_embed_dim=5, hidden_size=6, hidden_layers=2, dropout=0.0)
    torch.manual_seed(0)
    model = FeedforwardLanguageModel.build_model(Namespace(**(sizes | options)), task or TinyTask())
    for weight in model.parameters():
        nn.init.uniform_(weight, -1, 1)  # larger than in practice: errors show
    return model.to(DTYPE)


def reference(model, words, context, activation=torch.sigmoid):
    """Logits [T, V] of one sequence, a position at a time, by matrix products written out."""
    decoder, logits = model.decoder, []
    for t in range(len(words)):
        read = [int(words[i]) if i >= 0 else EOS for i in range(t - context + 1, t + 1)]
        x = torch.cat([decoder.embed_tokens.weight[w] for w in read])
        for layer in decoder.layers:
            x = activation(layer.weight @ x + layer.bias)
        weight, bias = model.softmax_parameters()
        logits.append(weight @ x + bias[:, 0])
    return torch.stack(logits)


# --- values and gradients -----------------------------------------------------------------------


@variants
def test_outputs_and_every_gradient_match_the_reference(options):
    model, context = tiny_model(**options), options.get("ngram", 4) - 1
    activation = torch.relu if options.get("activation") == "relu" else torch.sigmoid
    promised.gradients_match(
        model, tokens(5, 2, 7), lambda words: reference(model, words, context, activation)
    )


@pytest.mark.parametrize("ngram", [2, 3, 5])
def test_an_output_depends_on_exactly_the_words_before_it(ngram):
    model, words = tiny_model(ngram=ngram).eval(), tokens(9)
    before, _ = model(words)
    for changed in range(1, 9):
        others = words.clone()
        others[0, changed] = 5 if words[0, changed] != 5 else 6
        moved = (model(others)[0] - before).abs().amax(-1)[0] > 1e-9
        reach = range(changed, min(changed + ngram - 1, 9))
        assert moved.nonzero()[:, 0].tolist() == list(reach)


def test_padding_on_the_left_reads_as_ends_of_sentences():
    model, words = tiny_model().eval(), tokens(5)
    padded = torch.cat((torch.full((1, 3), PAD), words), 1)
    torch.testing.assert_close(model(padded)[0][:, 3:], model(words)[0], rtol=0, atol=1e-12)


@variants
def test_features_times_softmax_parameters_are_the_logits(options):
    shared = options.get("share_decoder_input_output_embed", False)
    promised.features_make_the_logits(tiny_model(**options), tokens(4, 6), shared)


@pytest.mark.parametrize("options", [{}, VARIANTS["shared"]])
def test_row_gradients_are_the_dense_ones_and_of_the_rows_read(options):
    words, found = tokens(5, 7), []
    for sparse in (False, True):
        model = tiny_model(**options)
        if sparse:
            model.use_row_gradients()
        features, _ = model(words, features_only=True)
        (features * ramp(features)).sum().backward()
        gradient = model.decoder.embed_tokens.weight.grad
        assert gradient.is_sparse == sparse
        found.append(gradient.to_dense())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)
    rows = model.rows_read(words, src_lengths=None)[model.decoder.embed_tokens.weight]
    assert set(found[0].abs().sum(1).nonzero()[:, 0].tolist()) <= set(rows.unique().tolist())


def test_cross_entropy_is_that_of_the_targets():
    task = TinyTask()
    promised.loss_is_that_of_the_targets(task, tiny_model(task))


def test_dropout_is_on_in_training_and_off_in_evaluation():
    words, dry = tokens(6, 6, 6), tiny_model()(tokens(6, 6, 6))[0]
    model = tiny_model(dropout=0.5)
    assert not torch.allclose(model(words)[0], dry, atol=1e-3)
    assert torch.equal(model.eval()(words)[0], dry)


def test_number_of_updates_is_kept():
    promised.keeps_the_number_of_updates(tiny_model())


# --- words carried from batch to batch ----------------------------------------------------------


@pytest.mark.parametrize("ngram", [2, 4, 6])
@pytest.mark.parametrize("length", [1, 4])
def test_blocks_that_go_on_are_one_long_block(ngram, length):
    model, words = tiny_model(ngram=ngram), tokens(8, 8, 8)
    whole, parts = model(words)[0], []
    for i in range(0, 8, length):
        fresh, block = torch.full((3,), i == 0), words[:, i : i + length]
        rows = model.rows_read(block, fresh=fresh)[model.decoder.embed_tokens.weight]
        reach = words[:, max(0, i - ngram + 2) : i + length]
        assert set(rows.unique().tolist()) - {EOS} == set(reach.unique().tolist()) - {EOS}
        parts.append(model(block, fresh=fresh)[0])
        model.eval()  # a validation in between changes nothing
        model(tokens(5, 5, 5, 5, seed=3), fresh=torch.ones(4, dtype=torch.bool))
        model.train()
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)


def test_streams_begin_anew_shrink_and_grow():
    model, words = tiny_model().eval(), tokens(8, 8, 8)
    begin, go_on = torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    model(words[:, :4], fresh=begin)
    logits, _ = model(words[:2, 4:], fresh=torch.tensor([False, True]))
    torch.testing.assert_close(logits[0], model(words)[0][0, 4:])
    torch.testing.assert_close(logits[1], model(words[:, 4:])[0][1])
    logits, _ = model(words, fresh=go_on)  # more rows than before: all start anew
    torch.testing.assert_close(logits, model(words)[0])
    assert not [name for name in model.state_dict() if "carried" in name]


# --- generation ---------------------------------------------------------------------------------


@variants
def test_incremental_decoding_equals_the_whole_forward(options):
    promised.decodes_word_by_word(tiny_model(**options).eval())


def test_scores_of_beam_search_are_those_of_the_forward_pass():
    task = TinyTask()
    promised.beam_search_scores_as_forward(task, tiny_model(task).eval())


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ngram": 1}, "--ngram 1"),
        ({"hidden_layers": 0}, "--hidden-layers 0"),
        ({"decoder_embed_dim": 0}, "--decoder-embed-dim 0"),
        ({"hidden_size": -1}, "--hidden-size -1"),
        ({"decoder_out_embed_dim": 0}, "--decoder-out-embed-dim 0"),
        ({"dropout": 1.0}, "--dropout 1.0"),
        ({"activation": "tanh"}, "--activation tanh"),
        ({"hidden_layers": 1, "decoder_out_embed_dim": 4}, "--hidden-size (6)"),
        (
            {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 4},
            "--decoder-out-embed-dim (4)",
        ),
        ({"criterion": "adaptive_loss"}, "--criterion adaptive_loss"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, says):
    promised.refuses_in_one_line(tiny_model, options, says)


def test_sharing_needs_as_many_words_out_as_in():
    promised.shares_only_as_many_words_out_as_in(tiny_model)


def test_architecture():
    assert ARCH_MODEL_REGISTRY["feedforward_lm"] is FeedforwardLanguageModel
    args = Namespace(decoder_embed_dim=64, share_decoder_input_output_embed=True)
    ARCH_CONFIG_REGISTRY["feedforward_lm"](args)
    assert (args.ngram, args.hidden_layers, args.activation) == (5, 2, "sigmoid")
    assert (args.hidden_size, args.decoder_out_embed_dim) == (512, 64)
    promised.has_no_length_of_its_own(tiny_model)


# --- commands -----------------------------------------------------------------------------------

SIZE = ("--arch", "feedforward_lm", "--decoder-embed-dim", "8", "--hidden-size", "16")
STREAMED = ("--task", "streamed_language_modeling", "--tokens-per-sample", "10")
SAMPLED = ("--criterion", "sampled_softmax", "--sample-frequent", "20", "--sample-random", "40")
SAMPLED_BACKEND = (*SAMPLED, "--ddp-backend", "sampled")


@pytest.fixture(scope="module")
def train(server, words):
    def run(folder, workers: int, *more: str, task=STREAMED):
        options = ("--max-update", "4", "--disable-validation", "--no-epoch-checkpoints")
        batches = ("--batch-size", 8 // workers, "--distributed-world-size", workers)
        arch = (*task, *SIZE, "--dropout", "0")
        command = train_command(words, folder, *options, *batches, *more, arch=arch)
        return Warm(server, command, folder).finish()

    return run


@pytest.mark.parametrize("criterion", [(), SAMPLED_BACKEND], ids=["legacy_ddp", "sampled"])
def test_two_workers_learn_as_one_does(train, tmp_path, criterion):
    alone = curve(train(tmp_path, 1, *criterion, "--save-dir", tmp_path / "1").ok())
    two = curve(train(tmp_path, 2, *criterion, "--save-dir", tmp_path / "2").ok())
    assert len(alone) == 4
    assert alone[4] < alone[1]
    assert two == pytest.approx(alone, abs=2e-3)


def test_model_averaging(train, tmp_path):
    more = ("--ddp-backend", "model_averaging", "--averaging-interval", "2")
    losses = curve(train(tmp_path, 2, *more).ok())
    assert losses[4] < losses[1]


def test_perplexity_of_every_word_in_the_plain_task(server, train, words, tmp_path):
    task = ("--task", "language_modeling", "--tokens-per-sample", "10")
    train(tmp_path, 1, task=task).ok()
    command = ("fairseq-eval-lm", words, "--user-dir", USER_DIR, "--cpu", "--gen-subset", "valid")
    command += ("--path", tmp_path / "checkpoint_last.pt", "--tokens-per-sample", "10")
    result = Warm(server, command, tmp_path).finish().ok()
    perplexity = float(re.search(r"Perplexity: ([\d.]+)", result.all)[1])
    assert 10 < perplexity < 5000


def test_hybrid_refuses_it_in_one_line(train, tmp_path):
    line = train(tmp_path, 2, "--ddp-backend", "hybrid").error()
    assert "--ddp-backend hybrid cannot split --arch feedforward_lm: use one of hybrid_lstm" in line

"""`fairseq-hybrid-convert`: fairseq's `lstm` as a `hybrid_lstm --input-feeding`."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models.lstm import LSTMModel, base_architecture
from hybrid_lstm_reference import TinyTask, batch
from jobs import TINY_LSTM, TRAIN, enliven

from fairseq_hybrid.inference import convert
from fairseq_hybrid.models.hybrid_lstm import HybridLSTMModel

NAME = "fairseq-hybrid-convert"
VARIANTS = {
    "one_layer": {},
    "three_layers": {"encoder_layers": 3, "decoder_layers": 3},
    "unlike_embeddings": {"decoder_embed_dim": 7},
    "narrow_output": {"decoder_out_embed_dim": 4},
    "output_shared": {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 5},
    "all_shared": {"share_all_embeddings": True, "decoder_out_embed_dim": 5},
    "both_directions": {"encoder_bidirectional": True, "encoder_hidden_size": 3},
}
REFUSED = {
    "--decoder-attention 0": {"decoder_attention": "0"},
    "an adaptive softmax": {"criterion": "adaptive_loss", "adaptive_softmax_cutoff": "4,8"},
    "--encoder-bidirectional with --encoder-layers 2": {
        **{"encoder_bidirectional": True, "encoder_layers": 2, "decoder_layers": 2},
        "encoder_hidden_size": 3,
    },
    "--encoder-hidden-size 6 in both directions and --decoder-hidden-size 6": {
        "encoder_bidirectional": True
    },
    "--encoder-hidden-size 4 and --decoder-hidden-size 6": {"encoder_hidden_size": 4},
}


def lstm(options: dict) -> tuple[Namespace, LSTMModel]:
    """A random model of fairseq's in float64."""
    sizes = dict(encoder_embed_dim=5, decoder_embed_dim=5, decoder_hidden_size=6, dropout=0.0)
    sizes |= dict(encoder_hidden_size=6, decoder_out_embed_dim=6, criterion="cross_entropy")
    args = Namespace(arch="lstm", **(sizes | options))
    base_architecture(args)
    torch.manual_seed(1)
    model = LSTMModel.build_model(args, TinyTask()).double().eval()
    for weight in model.parameters():
        weight.data.mul_(4.0)
    return args, model


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_and_attention_are_the_same(options):
    args, old = lstm(options)
    convert.refuse_other_kinds(args, old.state_dict(), "it")
    new_args = convert.options_of(args)
    new = HybridLSTMModel.build_model(new_args, TinyTask()).double().eval()
    new.load_state_dict(dict(convert.weights(old.state_dict(), new_args)), strict=True)
    source, lengths = batch(TinyTask(), [6, 4, 1], left_pad=True), torch.tensor([6, 4, 1])
    target = batch(TinyTask(), [5, 5, 5], eos_first=True, seed=2)
    expected, seen = old(source, lengths, target)
    logits, extra = new(source, lengths, target)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    for row, length in enumerate(lengths):  # theirs has its padding on the other side
        ours = extra["attn"][0][row][:, 6 - length :]
        torch.testing.assert_close(ours, seen[row][:, :length], rtol=0, atol=1e-9)


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_equal_is_refused(what):
    args, old = lstm(REFUSED[what])
    with pytest.raises(ValueError, match=f"it has {what}.*, for which hybrid_lstm has no equal"):
        convert.refuse_other_kinds(args, old.state_dict(), "it")


@pytest.fixture(scope="module")
def trained_lstm(prepared, server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lstm")
    more = ("--max-update", "1", "--disable-validation", "--criterion", "cross_entropy")
    server.train(prepared / "data-300/bin", folder, *more).ok()
    enliven(folder / "checkpoint_last.pt")
    return folder


def test_translations_are_the_same(trained_lstm, prepared, server, tmp_path):
    made = tmp_path / "new/checkpoint_best.pt"
    said = server.run(NAME, trained_lstm, made).ok()
    assert said.out.startswith(f"{made}: hybrid_lstm --input-feeding, with the weights of")
    outputs = [
        server.run(
            "fairseq-hybrid-translate", path, "--input", prepared / "text/test.de", "--scores",
            "--cpu",
        ).ok().out
        for path in (trained_lstm, made)
    ]  # fmt: skip
    rows = [[line.split("\t") for line in out.splitlines()] for out in outputs]
    assert [text for _, text in rows[0]] == [text for _, text in rows[1]]
    scores = [[float(score) for score, _ in each] for each in rows]
    assert scores[0] == pytest.approx(scores[1], abs=2e-4)


def test_training_goes_on_from_it(trained_lstm, prepared, server, tmp_path):
    made = tmp_path / "converted.pt"
    server.run(NAME, trained_lstm, made).ok()
    server.run(
        "fairseq-hybrid-train", prepared / "data-300/bin", "--arch", "hybrid_lstm",
        "--input-feeding", "--encoder-layers", "1", *TINY_LSTM[4:], *TRAIN, "--max-update", "2",
        "--finetune-from-model", made, "--save-dir", tmp_path / "on",
    ).ok()  # fmt: skip


def test_mistakes_are_one_line(trained_lstm, trained, server, tmp_path):
    (tmp_path / "there.pt").touch()
    for words, said in (
        ((trained, tmp_path / "new.pt"), "is of --arch hybrid_lstm: only lstm is taken"),
        ((trained_lstm, tmp_path / "there.pt"), "is there already: give another name"),
        ((trained_lstm, tmp_path), "is a folder: name the file"),
        (("/nowhere", tmp_path / "new.pt"), "not found: give a checkpoint"),
        ((trained_lstm,), "the following arguments are required: OUTPUT"),
    ):
        assert said in server.run(NAME, *words).error()

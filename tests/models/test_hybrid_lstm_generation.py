"""`hybrid_lstm` through fairseq's beam search and its commands."""

import math
import re

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from hybrid_lstm_reference import TinyTask, batch, tiny_model
from jobs import USER_DIR

LENGTHS = [3, 9, 1, 5, 5, 7]


def lively_model(task, seed=0, **options):
    """The first random model from `seed` on whose translations end at different times."""
    while True:
        model = tiny_model(task, dtype=torch.float32, seed=seed, **options)
        for weight in model.parameters():
            weight.data.mul_(4.0)
        model.decoder.head.output.bias.data[task.target_dictionary.eos()] += 4.0
        beams = generate([model], task, batch(task, LENGTHS))
        if len({max(len(h["tokens"]) for h in beam) for beam in beams}) > 2:
            return model
        seed += 1


def generate(models, task, tokens, generator=SequenceGenerator):
    for model in models:
        model.eval()
    search = generator(models, task.target_dictionary, beam_size=5, max_len_a=0, max_len_b=12)
    lengths = tokens.ne(task.source_dictionary.pad()).sum(1)
    return search.generate(models, {"net_input": {"src_tokens": tokens, "src_lengths": lengths}})


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("left_pad", [False, True])
def test_a_sentence_is_translated_the_same_alone_and_in_any_batch(
    input_feeding, bidirectional, left_pad
):
    task = TinyTask()
    options = dict(input_feeding=input_feeding, encoder_bidirectional_first=bidirectional)
    model = lively_model(task, **options)
    tokens = batch(task, LENGTHS, left_pad=left_pad)
    alone = [generate([model], task, row[row.ne(1)][None])[0] for row in tokens]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1], [2, 0, 0, 4]):
        together = generate([model], task, tokens[order])
        for i, hypotheses in zip(order, together):
            assert len(hypotheses) == len(alone[i]) == 5
            for ours, expected in zip(hypotheses, alone[i]):
                assert torch.equal(ours["tokens"], expected["tokens"])
                assert math.isclose(ours["score"], expected["score"], abs_tol=1e-5)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_scores_of_beam_search_are_those_of_the_forward_pass(input_feeding):
    task = TinyTask()
    model = lively_model(task, input_feeding=input_feeding)
    source = batch(task, LENGTHS, left_pad=True)
    for row, hypotheses in zip(source, generate([model], task, source)):
        for hypothesis in hypotheses:
            words = hypothesis["tokens"]
            shifted = torch.cat((words[-1:], words[:-1]))  # eos first
            logits, _ = model(row[None], None, shifted[None])
            scores = logits.log_softmax(-1)[0].gather(1, words[:, None])[:, 0]
            torch.testing.assert_close(scores, hypothesis["positional_scores"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_ensemble_of_two(input_feeding):
    """Its probabilities are the mean of its members', and twins change nothing."""
    task = TinyTask()
    first, second = (lively_model(task, seed=s, input_feeding=input_feeding) for s in (0, 100))
    tokens = batch(task, LENGTHS, left_pad=True)
    single, twins = generate([first], task, tokens), generate([first, first], task, tokens)
    for ours, expected in zip(twins, single):
        assert torch.equal(ours[0]["tokens"], expected[0]["tokens"])
        assert math.isclose(ours[0]["score"], expected[0]["score"], abs_tol=1e-5)
    for row, hypotheses in zip(tokens, generate([first, second], task, tokens)):
        words = hypotheses[0]["tokens"]
        shifted = torch.cat((words[-1:], words[:-1]))[None]
        probability = (
            sum(m(row[None], None, shifted)[0].softmax(-1)[0] for m in (first, second)) / 2
        )
        expected = probability.log().gather(1, words[:, None])[:, 0]
        torch.testing.assert_close(hypotheses[0]["positional_scores"], expected, rtol=0, atol=1e-5)


def test_alignments_point_at_source_words_whatever_the_padding():
    task = TinyTask()
    model = lively_model(task)
    model.decoder.make_generation_fast_(need_attn=True)
    alone, together = (
        [
            hypotheses[0]["alignment"]
            for tokens in batches
            for hypotheses in generate([model], task, tokens, SequenceGeneratorWithAlignment)
        ]
        for batches in (
            [row[row.ne(1)][None] for row in batch(task, LENGTHS)],
            [batch(task, LENGTHS, left_pad=True)],
        )
    )
    assert together == alone
    assert len({source for alignment in alone for source, _ in alignment}) > 2


@pytest.fixture(scope="module")
def trained(server, data, tmp_path_factory):
    """Two updates of each variant, by command line, with --eval-bleu in between."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, options in {
        "plain": [],
        "feeding": ["--input-feeding", "--encoder-bidirectional-first", "--residual", "True"],
    }.items():
        server.run(
            *("fairseq-train", data, "--user-dir", USER_DIR, "--arch", "hybrid_lstm", "--cpu"),
            *("--encoder-embed-dim", "8", "--encoder-hidden-size", "8", *options),
            *("--optimizer", "adam", "--lr", "0.01", "--batch-size", "16", "--max-update", "2"),
            *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
            *("--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 5}'),
            *("--save-dir", folder / name, "--no-epoch-checkpoints"),
        ).ok()
    return folder


def test_commands_generate_with_ensemble_and_alignment(server, data, trained):
    paths = ":".join(str(trained / n / "checkpoint_last.pt") for n in ("plain", "feeding"))
    done = server.run(
        *("fairseq-generate", data, "--user-dir", USER_DIR, "--path", paths, "--cpu"),
        *("--beam", "5", "--batch-size", "16", "--max-len-b", "6", "--print-alignment"),
    ).ok()
    assert len(re.findall(r"^H-\d+", done.out, re.M)) == 40
    assert len(re.findall(r"^A-\d+", done.out, re.M)) == 40


def test_command_refuses_bad_options(server, data, tmp_path):
    done = server.run(
        *("fairseq-train", data, "--user-dir", USER_DIR, "--arch", "hybrid_lstm", "--cpu"),
        *("--decoder-layers", "3", "--optimizer", "adam", "--batch-size", "16"),
        *("--save-dir", tmp_path),
    )
    assert "--encoder-layers 2 and --decoder-layers 3 cannot be joined" in done.error()

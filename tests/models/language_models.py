"""What every language model of ours promises, and what it is tested with; a model in, no result."""

from __future__ import annotations

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from hybrid_lstm_reference import TinyTask, batch, dictionary
from torch import nn

PAD, EOS = 1, 2
DTYPE = torch.float64


def tokens(*lengths, seed=1):
    return batch(TinyTask(), lengths, eos_first=True, seed=seed)


def gradients(model):
    return {
        n: p.grad.to_dense() if p.grad.is_sparse else p.grad.clone()
        for n, p in model.named_parameters()
        if p.grad is not None
    }


def ramp(x):
    return torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)


def assert_same(ours, expected, atol=1e-10):
    assert set(ours) == set(expected)
    for name in expected:
        torch.testing.assert_close(ours[name], expected[name], rtol=0, atol=atol, msg=name)


def gradients_match(model, words, logits_of) -> None:
    """Outputs and every gradient are those of `logits_of` each sentence without its padding."""
    logits, _ = model(words, src_lengths=words.ne(PAD).sum(1))
    weights, real = ramp(logits), words.ne(PAD)
    (logits * weights)[real].sum().backward()
    ours = gradients(model)
    assert set(ours) == {n for n, _ in model.named_parameters()}
    model.zero_grad()
    loss = 0.0
    for i in range(len(words)):
        expected = logits_of(words[i][real[i]])
        torch.testing.assert_close(logits[i][real[i]], expected, rtol=0, atol=1e-10)
        loss = loss + (expected * weights[i][real[i]]).sum()
    loss.backward()
    assert_same(ours, gradients(model))


def gradients_are_differences(model, loss) -> None:
    """Every gradient, in a random direction; `loss()` draws the same masks every time."""
    loss().backward()
    for name, weight in model.named_parameters():
        direction = torch.randn(weight.shape, dtype=weight.dtype)
        with torch.no_grad():
            weight += 1e-5 * direction
            up = loss()
            weight -= 2e-5 * direction
            numeric = (up - loss()) / 2e-5
            weight += 1e-5 * direction
        analytic = (weight.grad * direction).sum()
        torch.testing.assert_close(analytic, numeric, rtol=1e-5, atol=1e-6, msg=name)


def features_make_the_logits(model, words, shared: bool) -> torch.Tensor:
    logits, _ = model(words, src_lengths=None)
    features, extra = model(words, src_lengths=None, fresh=None, features_only=True)
    weight, bias = model.softmax_parameters()
    assert extra["attn"] == [None]
    assert bias.shape == (len(TinyTask().target_dictionary), 1)
    torch.testing.assert_close(features @ weight.t() + bias.t(), logits, rtol=0, atol=1e-12)
    assert (weight is model.decoder.embed_tokens.weight) == shared
    return features


def loss_is_that_of_the_targets(task, model) -> None:
    words, target = tokens(4, 6), batch(task, (4, 6), seed=2)
    sample = {"net_input": {"src_tokens": words}, "target": target, "ntokens": 10}
    loss, _, _ = CrossEntropyCriterion(task, False)(model, sample)
    expected = nn.functional.cross_entropy(
        model(words)[0].flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum"
    )
    torch.testing.assert_close(loss, expected.float())


def keeps_the_number_of_updates(model) -> None:
    assert model.num_updates == 0
    model.set_num_updates(12)
    assert model.num_updates == 12


def decodes_word_by_word(model) -> None:
    words = tokens(6, 6, 6)
    whole, _ = model(words)
    state = {}
    for t in range(6):
        step, _ = model.decoder(words[:, : t + 1], incremental_state=state)
        torch.testing.assert_close(step[:, 0], whole[:, t], rtol=0, atol=1e-10)


def beam_search_scores_as_forward(task, model) -> None:
    search = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=9)
    prefix = torch.tensor([[5, 7, 9], [6, 6, PAD]])
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": torch.tensor([3, 2])}}
    beams = search.generate([model], sample, prefix_tokens=prefix, bos_token=EOS)
    for start, hypotheses in zip(([5, 7, 9], [6, 6]), beams):
        assert len({tuple(h["tokens"].tolist()) for h in hypotheses}) == 3
        for hypothesis in hypotheses:
            words = hypothesis["tokens"]
            assert words[: len(start)].tolist() == start
            output = model(torch.cat((words.new_tensor([EOS]), words[:-1]))[None])
            scores = model.get_normalized_probs(output, log_probs=True)[0]
            scores = scores.gather(1, words[:, None])[:, 0].float()
            torch.testing.assert_close(scores, hypothesis["positional_scores"], rtol=0, atol=1e-5)


def refuses_in_one_line(make, options, says) -> None:
    with pytest.raises(ValueError, match=r"--") as error:
        make(**options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def shares_only_as_many_words_out_as_in(make) -> None:
    task = TinyTask()
    task.target_dictionary = dictionary(5)
    assert make(task)(tokens(4))[0].size(2) == len(task.target_dictionary)
    with pytest.raises(ValueError, match="--output-dictionary-size"):
        make(task, share_decoder_input_output_embed=True)


def has_no_length_of_its_own(make) -> None:
    """The blocks of training are no limit."""
    assert make(tokens_per_sample=35, max_target_positions=None).max_positions() > 10_000
    assert make(max_target_positions=50).max_positions() == 50

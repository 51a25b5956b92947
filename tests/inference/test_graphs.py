"""The ONNX graphs compute what the models do, and the program beside them searches as fairseq."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from hybrid_lstm_reference import TinyTask, batch, tiny_model
from test_hybrid_lstm import VARIANTS
from test_hybrid_lstm_lm import VARIANTS as LANGUAGE_MODELS
from test_hybrid_lstm_lm import tiny_model as tiny_language_model

from fairseq_hybrid.inference import graphs
from fairseq_hybrid.inference.standalone_translate import Translator

PAD, EOS = 1, 2
LENGTHS = [3, 9, 1, 5, 5, 7]


def session(graph) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(graph.SerializeToString())


def lively_model(task, **options):
    """Its hypotheses differ and end at different times."""
    model = tiny_model(task, dtype=torch.float32, **options)
    for weight in model.parameters():
        weight.data.mul_(4.0)
    if model.decoder.head.output.bias is not None:
        model.decoder.head.output.bias.data[EOS] += 4.0
    return model.eval()


@pytest.fixture
def exported(tmp_path):
    """Writes a model as export.py does, and opens it."""

    def write(model, task, longest) -> Translator:
        symbols = task.source_dictionary.symbols
        settings = {"source": symbols, "target": symbols, "joins": [], "longest": 1024}
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        onnx.save(graphs.encoder(model), tmp_path / "encoder.onnx")
        onnx.save(graphs.decoder(model), tmp_path / "decoder.onnx")
        return Translator(tmp_path, 1, longest)

    return write


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("beam", [1, 5])
def test_the_search_finds_what_fairseq_finds(options, beam, exported):
    task = TinyTask()
    model = lively_model(task, **options)
    tokens = batch(task, LENGTHS)
    search = SequenceGenerator(
        [model], task.target_dictionary, beam_size=beam, max_len_a=0.5, max_len_b=9
    )
    lengths = tokens.ne(PAD).sum(1)
    net_input = {"src_tokens": tokens, "src_lengths": lengths}
    expected = search.generate([model], {"net_input": net_input})
    sources = [row[row != PAD].tolist() for row in tokens]
    found = exported(model, task, (0.5, 9)).search(sources, beam)
    for ours, theirs in zip(found, expected):
        assert [ids for _, ids in ours] == [h["tokens"][:-1].tolist() for h in theirs]
        assert [s for s, _ in ours] == pytest.approx([float(h["score"]) for h in theirs], abs=1e-5)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_steps_are_the_forward_pass(options, exported):
    """Log-probabilities and attention word by word."""
    task = TinyTask()
    model = tiny_model(task, dtype=torch.float32, **options).eval()
    source, target = batch(task, [3, 6]), batch(task, [5, 5], eos_first=True, seed=2)
    translator = exported(model, task, (1, 1))
    lengths = np.array([3, 6], np.int32)
    found = translator.encoder.run(None, {"words": source.numpy(), "lengths": lengths})
    given = dict(zip(translator.names, found))
    np.testing.assert_array_equal(given["mask"], np.where(source.numpy() == PAD, -np.inf, 0))
    size = len(task.target_dictionary)
    given |= dict(order=np.arange(2), scores=np.zeros((2, 1), np.float32), count=np.array([size]))
    given["barred"] = translator.barred[1]
    logits, extra = model(source, None, target)
    expected = logits.log_softmax(-1)
    for step in range(5):
        given["words"] = target[:, step].numpy()
        chances, ids, order, attention, *state = translator.decoder.run(None, given)
        given.update(zip(translator.names[3:], state))
        assert order.tolist() == [[0] * size, [1] * size]
        assert ids[:, -1].tolist() == [PAD, PAD]
        for row in range(2):
            wanted = expected[row, step].detach().numpy()
            np.testing.assert_allclose(chances[row, :-1], wanted[ids[row, :-1]], atol=1e-5)
            seen = extra["attn"][0][row, step].detach().numpy()
            np.testing.assert_allclose(attention[row], seen, atol=1e-5)


@pytest.mark.parametrize("options", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS.keys())
def test_language_models_go_on_from_their_states(options):
    model = tiny_language_model(dtype=torch.float32, **options).eval()
    words = batch(TinyTask(), [6, 6], eos_first=True)
    expected = model(words)[0].log_softmax(-1).detach().numpy()
    run = session(graphs.language_model(model))
    names = [i.name for i in run.get_inputs()][1:]
    state = {
        n: np.zeros((1, 2, i.shape[2]), np.float32) for n, i in zip(names, run.get_inputs()[1:])
    }
    found = []
    for part in (words[:, :2], words[:, 2:]):
        chances, *after = run.run(None, {"words": part.numpy(), **state})
        state = dict(zip(names, after))
        found.append(chances)
    np.testing.assert_allclose(np.concatenate(found, 1), expected, atol=1e-5)

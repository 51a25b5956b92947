"""`hybrid_lstm` against a plain reference, in pieces and as a whole."""

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from hybrid_lstm_reference import (
    TinyTask,
    batch,
    dictionary,
    reference_logits,
    tiny_model,
)
from language_models import gradients_are_differences

from fairseq_hybrid.models.hybrid_lstm import HybridLSTMModel
from fairseq_hybrid.models.lstm_layer import run_layers
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import join_state

VARIANTS = {
    "plain": {},
    "residual": {"residual": True},
    "no_residual": {"residual": False},
    "one_layer": {"encoder_layers": 1},
    "bidirectional_first": {"encoder_bidirectional_first": True},
    "input_feeding": {"input_feeding": True},
    "input_feeding_no_residual": {"input_feeding": True, "residual": False},
    "both": {"input_feeding": True, "encoder_bidirectional_first": True},
    "narrow_output": {"decoder_out_embed_dim": 4},
    "shared": {"share_all_embeddings": True},
}
SOURCE, TARGET = [3, 6, 1, 4], [5, 2, 7, 4]
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())


def net_input(task, source=SOURCE, target=TARGET, *, left_pad=False):
    return {
        "src_tokens": batch(task, source, left_pad=left_pad),
        "src_lengths": torch.tensor(source),
        "prev_output_tokens": batch(task, target, eos_first=True, seed=2),
    }


def forward(model, inputs):
    """Padded logits, in training too."""
    logits, extra = model(**inputs)
    return extra["packing"].unpack(logits) if model.training else logits


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def loss_weights(logits):
    return torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)


@variants
@pytest.mark.parametrize("left_pad", [False, True], ids=["right_padded", "left_padded"])
def test_outputs_and_every_gradient_match_the_reference(options, left_pad):
    task, pad = TinyTask(), 1
    model = tiny_model(task, **options)
    inputs = net_input(task, left_pad=left_pad)
    logits = forward(model, inputs)
    weights = loss_weights(logits)
    real = inputs["prev_output_tokens"].ne(pad)
    (logits * weights)[real].sum().backward()
    ours = gradients(model)
    assert set(ours) == {n for n, _ in model.named_parameters()}

    model.zero_grad()
    loss = 0.0
    for i in range(len(SOURCE)):
        source, target = (inputs[k][i] for k in ("src_tokens", "prev_output_tokens"))
        expected, _ = reference_logits(model, source[source.ne(pad)], target[target.ne(pad)])
        torch.testing.assert_close(logits[i][real[i]], expected, rtol=0, atol=1e-10)
        loss = loss + (expected * weights[i][real[i]]).sum()
    loss.backward()
    for name, expected in gradients(model).items():
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=1e-10, msg=name)


@variants
def test_float32_kernels_agree_with_float64(options):
    """float32 on CPU takes other kernels (oneDNN) than float64."""
    task = TinyTask()
    inputs = net_input(task)
    expected = forward(tiny_model(task, **options), inputs)
    logits = forward(tiny_model(task, dtype=torch.float32, **options), inputs)
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=1e-5)


@variants
def test_incremental_decoding_equals_the_whole_forward(options):
    task = TinyTask()
    model = tiny_model(task, **options).eval()
    inputs = net_input(task, target=[6] * 4, left_pad=True)
    tokens = inputs.pop("prev_output_tokens")
    encoder_out = model.encoder(**inputs)
    whole, extra = model.decoder(tokens, encoder_out)
    state = {}
    for t in range(6):
        step, step_extra = model.decoder(tokens[:, : t + 1], encoder_out, incremental_state=state)
        torch.testing.assert_close(step[:, 0], whole[:, t], rtol=0, atol=1e-10)
        torch.testing.assert_close(step_extra["attn"][0][:, 0], extra["attn"][0][:, t])
    prefix, prefix_extra = model.decoder(tokens[:, :4], encoder_out, incremental_state={})
    torch.testing.assert_close(prefix, whole[:, :4], rtol=0, atol=1e-10)
    torch.testing.assert_close(prefix_extra["attn"][0], extra["attn"][0][:, :4])


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize(
    "order",
    [[3, 1, 0, 2], [0, 0, 1, 1, 3, 3], [0, 1, 0, 1], [2, 2, 0]],
    ids=["permuted", "beams_of_two_one_sentence_done", "interleaved", "unequal"],
)
def test_reordering_between_steps(order, input_feeding):
    """Hypotheses of any sentences in any order go on as if they had been decoded alone."""
    task = TinyTask()
    model = tiny_model(task, input_feeding=input_feeding).eval()
    inputs = net_input(task, target=[3] * 4)
    tokens = inputs.pop("prev_output_tokens")
    encoder_out, state = model.encoder(**inputs), {}
    model.decoder(tokens[:, :1], encoder_out, incremental_state=state)
    new_order = torch.tensor(order)
    model.decoder.reorder_incremental_state_scripting(state, new_order)
    reordered = model.encoder.reorder_encoder_out(encoder_out, new_order)
    step, _ = model.decoder(tokens[new_order, :2], reordered, incremental_state=state)
    whole, _ = model.decoder(tokens, encoder_out)
    torch.testing.assert_close(step[:, 0], whole[new_order, 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("left_pad", [False, True])
def test_attention_is_aligned_with_the_source_columns(left_pad):
    task = TinyTask()
    model = tiny_model(task).eval()
    inputs = net_input(task, left_pad=left_pad)
    _, extra = model(**inputs)
    attention = extra["attn"][0]
    assert attention.shape == (4, 7, 6)
    for i in range(4):
        real = inputs["src_tokens"][i].ne(1)
        source, target = inputs["src_tokens"][i][real], inputs["prev_output_tokens"][i]
        _, expected = reference_logits(model, source, target[target.ne(1)])
        torch.testing.assert_close(attention[i, : TARGET[i]][:, real], expected)
        assert attention[i][:, ~real].abs().sum() == 0


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("prefix", [0, 2])
def test_criterions_see_the_same_loss_with_and_without_padding(input_feeding, prefix):
    """In training only real words get logits: losses and gradients are those of padded ones."""
    task = TinyTask()
    model = tiny_model(task, input_feeding=input_feeding, ignore_prefix_size=prefix)
    target = batch(task, TARGET)
    sample = {"net_input": net_input(task), "target": target, "ntokens": sum(TARGET)}
    for criterion in (
        LabelSmoothedCrossEntropyCriterion(task, False, 0.1, prefix, report_accuracy=True),
        CrossEntropyCriterion(task, False),
    ):
        results = []
        for mode in (model.train, model.eval):
            mode()
            model.zero_grad()
            loss, _, log = criterion(model, sample)
            loss.backward()
            results.append((log, gradients(model)))
        (log, grads), (expected_log, expected_grads) = results
        torch.testing.assert_close(log, expected_log)
        torch.testing.assert_close(grads, expected_grads, rtol=0, atol=1e-10)


# --- what a wrapper builds on -------------------------------------------------------------------


def in_chunks(layers, x, packing, states, cuts):
    """Layers one by one, each over time chunk by chunk: the most cut-up order there is."""
    edges = [0, *[c for c in cuts if c < packing.steps], packing.steps]
    for i, layer in enumerate(layers):
        outputs, state = [], None if states is None else [states[i]]
        for start, stop in zip(edges, edges[1:]):
            rows, sizes = packing.chunk(start, stop)
            y, state = run_layers([layer], x[rows], sizes, state)
            outputs.append(y)
        x = torch.cat(outputs)
        yield state[0]
    yield x


@pytest.mark.parametrize("cuts", [[], [1], [2, 3], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_parallel_parts_compose_to_the_forward(cuts, dtype, bidirectional):
    task = TinyTask()
    model = tiny_model(task, dtype=dtype, encoder_bidirectional_first=bidirectional)
    inputs = net_input(task)
    expected, _ = model(**inputs)
    assert expected.shape == (sum(TARGET), len(task.target_dictionary))
    (expected * loss_weights(expected)).sum().backward()
    expected_gradients = gradients(model)

    model.zero_grad()
    parts = model.parallel_parts()
    assert parts.decoder_splits
    src = Packing.from_tokens(inputs["src_tokens"], parts.source_pad)
    x = parts.embed_source(src.pack(inputs["src_tokens"]))
    whole, rest = parts.encoder_layers[:1], parts.encoder_layers
    states = []
    assert parts.whole_sentence_layers == bidirectional
    if parts.whole_sentence_layers:
        x, states = run_layers(whole, x, src.batch_sizes)
        rest = parts.encoder_layers[1:]
    *more, enc_top = in_chunks(rest, x, src, None, cuts)
    states = states + more
    tgt = Packing.from_tokens(inputs["prev_output_tokens"], parts.target_pad)
    x = parts.embed_target(tgt.pack(inputs["prev_output_tokens"]))
    states = [join_state(state, src, tgt) for state in states]
    *_, dec_top = in_chunks(parts.decoder_layers, x, tgt, states, cuts)
    logits, _ = parts.net_output(*parts.head(dec_top, tgt, enc_top, src), tgt)
    atol = 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(logits, expected, rtol=0, atol=atol)
    (logits * loss_weights(logits)).sum().backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0, atol=atol, msg=name)


def test_parallel_parts_with_input_feeding_keep_the_decoder_whole():
    task = TinyTask()
    model = tiny_model(task, input_feeding=True)
    inputs = net_input(task)
    parts = model.parallel_parts()
    assert not parts.decoder_splits
    src = Packing.from_tokens(inputs["src_tokens"], parts.source_pad)
    x = parts.embed_source(src.pack(inputs["src_tokens"]))
    top, states = run_layers(parts.encoder_layers, x, src.batch_sizes)
    logits, _ = parts.decode(inputs["prev_output_tokens"], top, src, states)
    assert torch.equal(logits, model(**inputs)[0])


@pytest.mark.parametrize("input_feeding", [False, True])
def test_dropout_is_off_in_evaluation_and_on_in_training(input_feeding):
    task = TinyTask()
    model = tiny_model(task, dropout=0.5, input_feeding=input_feeding)
    inputs = net_input(task)
    assert not torch.equal(model(**inputs)[0], model(**inputs)[0])
    torch.manual_seed(3)
    (logits, _), seeded = model(**inputs), gradients(model)
    logits.sum().backward()
    torch.manual_seed(3)
    assert torch.equal(model(**inputs)[0], logits)
    assert not seeded
    assert all(g.isfinite().all() for g in gradients(model).values())
    model.eval()
    dry = tiny_model(task, input_feeding=input_feeding).eval()
    assert torch.equal(model(**inputs)[0], dry(**inputs)[0])


def test_input_feeding_gradient_with_dropout():
    """The hand-written backward against finite differences, dropout masks held fixed."""
    task = TinyTask()
    model = tiny_model(task, dropout=0.4, input_feeding=True, encoder_layers=2, residual=True)
    inputs = net_input(task)

    def loss():
        torch.manual_seed(5)
        logits, _ = model(**inputs)
        return (logits * loss_weights(logits)).sum()

    gradients_are_differences(model, loss)


# --- packing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_pad", [False, True])
def test_packing_goes_there_and_back(left_pad):
    tokens = batch(TinyTask(), SOURCE, left_pad=left_pad)
    packing = Packing.from_tokens(tokens, pad=1)
    assert packing.batch_sizes.tolist() == [4, 3, 3, 2, 1, 1]
    assert packing.order_B.tolist() == [1, 3, 0, 2]
    assert torch.equal(packing.padding_mask(), tokens.eq(1))
    packed = packing.pack(tokens)
    assert packed.ne(1).all()
    assert torch.equal(packing.unpack(packed), tokens.masked_fill(tokens.eq(1), 0))
    first = tokens[torch.arange(4), tokens.ne(1).int().argmax(1)]
    assert torch.equal(packed[:4], first[packing.order_B])
    assert packing.chunk(1, 3)[0] == slice(4, 10)


# --- options ------------------------------------------------------------------------------------


def test_sharing_shares():
    alone = tiny_model()
    tied = tiny_model(share_decoder_input_output_embed=True)
    joint = tiny_model(share_all_embeddings=True)
    assert alone.decoder.head.output.weight is not alone.decoder.embed_tokens.weight
    assert tied.decoder.head.output.weight is tied.decoder.embed_tokens.weight
    assert tied.encoder.embed_tokens.weight is not tied.decoder.embed_tokens.weight
    assert joint.encoder.embed_tokens.weight is joint.decoder.head.output.weight


def test_freezing_and_pretrained_embeddings(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("1 5\nw3 1 2 3 4 5\n")
    model = tiny_model(encoder_freeze_embed=True, encoder_embed_path=str(path))
    assert not model.encoder.embed_tokens.weight.requires_grad
    assert model.decoder.embed_tokens.weight.requires_grad
    row = model.encoder.dictionary.index("w3")
    assert model.encoder.embed_tokens.weight[row].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"encoder_layers": 2, "decoder_layers": 3}, "--encoder-layers 2 and --decoder-layers 3"),
        ({"decoder_hidden_size": 8}, "--encoder-hidden-size 6 and --decoder-hidden-size 8"),
        ({"encoder_layers": 0}, "--encoder-layers 0"),
        ({"decoder_out_embed_dim": 0}, "--decoder-out-embed-dim 0"),
        ({"dropout": 1.0}, "--dropout 1.0"),
        ({"forget_bias": float("nan")}, "--forget-bias nan"),
        ({"decoder_dropout_out": -0.1}, "--decoder-dropout-out -0.1"),
        (
            {"encoder_bidirectional_first": True, "encoder_hidden_size": 7},
            "--encoder-hidden-size (7)",
        ),
        ({"share_all_embeddings": True, "decoder_embed_dim": 4}, "--decoder-embed-dim (4)"),
        (
            {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 4},
            "--decoder-out-embed-dim (4)",
        ),
        ({"share_all_embeddings": True, "decoder_embed_path": "x"}, "--decoder-embed-path x"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, says):
    with pytest.raises(ValueError, match=r": ") as error:
        tiny_model(**options)
    message = str(error.value)
    assert says in message
    assert "\n" not in message


def test_sharing_needs_one_dictionary():
    task = TinyTask()
    task.target_dictionary = dictionary(5)
    with pytest.raises(ValueError, match="--joined-dictionary"):
        tiny_model(task, share_all_embeddings=True)


@pytest.mark.parametrize(
    ("arch", "layers", "embed", "hidden", "residual"),
    [
        ("hybrid_lstm", 2, 256, 256, False),
        ("hybrid_lstm_iwslt", 2, 256, 512, False),
        ("hybrid_lstm_wmt", 4, 512, 1024, True),
    ],
)
def test_architectures(arch, layers, embed, hidden, residual):
    assert ARCH_MODEL_REGISTRY[arch] is HybridLSTMModel
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    assert (args.encoder_layers, args.decoder_layers) == (layers, layers)
    assert (args.encoder_embed_dim, args.decoder_embed_dim) == (embed, embed)
    assert (args.encoder_hidden_size, args.decoder_hidden_size) == (hidden, hidden)
    assert args.residual == residual
    assert all(isinstance(v, (int, float, bool, type(None))) for v in vars(args).values())
    given = Namespace(encoder_hidden_size=64, residual=not residual)
    ARCH_CONFIG_REGISTRY[arch](given)
    assert (given.decoder_hidden_size, given.residual) == (64, not residual)


@pytest.mark.parametrize(
    ("options", "opened"),
    [({}, 1.0), ({"encoder_bidirectional_first": True}, 0.0), ({"forget_bias": -0.5}, -0.5)],
)
def test_forget_gates_of_all_layers_start_as_open_as_asked(options, opened):
    """And no other gate does: an average over many units tells them apart."""
    torch.manual_seed(1)
    args = Namespace(encoder_embed_dim=4, encoder_hidden_size=512, **options)
    model = HybridLSTMModel.build_model(args, TinyTask())
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for end in ("l0", "l0_reverse") if layer.bidirectional else ("l0",):
            bias = getattr(layer.lstm, f"bias_ih_{end}") + getattr(layer.lstm, f"bias_hh_{end}")
            means = torch.stack([gate.mean() for gate in bias.chunk(4)])
            wanted = torch.tensor([0.0, opened, 0.0, 0.0], dtype=means.dtype)
            torch.testing.assert_close(means, wanted, atol=0.03, rtol=0)

"""Our models as ONNX graphs, written down from their weights: nothing is traced.

    encoder  words, lengths → keys, values, mask (what the decoder reads), h, c (where it starts)
    decoder  one word for every row of a beam: the rows of before that go on (`order`), their words,
             scores and states → of each sentence the best `count` next words, which row they go on
             from, with their scores; attention, states. To what `barred` says is added: minus
             infinity for words that must not come
    language model  words, states → log-probabilities of the next words, states

Every size but those of the model is dynamic. Padding is on the right, and `mask` is minus infinity
there. Shape suffixes: B sentences, S source words, K rows of a sentence's beam, R all rows (B × K),
N next words, L layers, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

OPSET = 17
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


class Graph:
    """Nodes and weights; calling it adds a node and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}

    def __call__(self, op: str, *inputs: str, results: int = 1, **attributes: Any) -> Any:
        names = [f"{op.lower()}_{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if results == 1 else names

    def weight(self, name: str, value: Any) -> str:
        if isinstance(value, Tensor):
            value = value.detach().float().cpu().numpy()
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def whole(self, *numbers: int) -> str:
        """A constant list of whole numbers."""
        return self.weight("n_" + "_".join(map(str, numbers)), np.array(numbers, np.int64))

    def scalar(self, number: int) -> str:
        return self.weight(f"scalar_{number}", np.array(number, np.int64))

    def model(self, inputs: Sequence[tuple], outputs: Sequence[tuple]) -> Any:
        """`outputs`: (name to give, name of the result, type, shape)."""
        for name, result, *_ in outputs:
            self.nodes.append(helper.make_node("Identity", [result], [name]))
        graph = helper.make_graph(
            self.nodes,
            "hybrid",
            [helper.make_tensor_value_info(*each) for each in inputs],
            [helper.make_tensor_value_info(name, *what) for name, _, *what in outputs],
            list(self.weights.values()),
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        made.ir_version = 8  # of that opset: older runtimes read it too
        onnx.checker.check_model(made)
        return made

    def lstm(
        self, name: str, lstm: Any, x: str, lengths: str = "", h: str = "", c: str = ""
    ) -> tuple[str, str, str]:
        """x [S, R, I] → its output [S, R, H], the last states [1, R, H]."""
        ends = ["_l0", "_l0_reverse"] if lstm.bidirectional else ["_l0"]
        weights = dict(lstm.named_parameters())
        parts = {
            kind: np.stack([self.gates(weights[kind + end]) for end in ends])
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        bias = np.concatenate((parts["bias_ih"], parts["bias_hh"]), 1)
        y, h, c = self(
            "LSTM", x,
            self.weight(f"{name}.input", parts["weight_ih"]),
            self.weight(f"{name}.recurrent", parts["weight_hh"]),
            self.weight(f"{name}.bias", bias),
            lengths, h, c,
            results=3, hidden_size=lstm.hidden_size,
            direction="bidirectional" if lstm.bidirectional else "forward",
        )  # fmt: skip
        width = len(ends) * lstm.hidden_size
        if len(ends) == 1:
            return self("Squeeze", y, self.whole(1)), h, c
        y = self("Reshape", self("Transpose", y, perm=[0, 2, 1, 3]), self.whole(0, 0, width))
        h, c = (
            self("Reshape", self("Transpose", s, perm=[1, 0, 2]), self.whole(1, -1, width))
            for s in (h, c)
        )
        return y, h, c

    @staticmethod
    def gates(weight: Tensor) -> np.ndarray:
        """torch has input, forget, cell, output; ONNX input, output, forget, cell."""
        i, f, g, o = np.split(weight.detach().float().cpu().numpy(), 4)
        return np.concatenate((i, o, f, g))

    def linear(self, name: str, x: str, layer: Any) -> str:
        """Of a matrix x."""
        inputs = [x, self.weight(f"{name}.weight", layer.weight)]
        if layer.bias is not None:
            inputs.append(self.weight(f"{name}.bias", layer.bias))
        return self("Gemm", *inputs, transB=1)


def encoder(model: Any) -> Any:
    part, g = model.encoder, Graph()
    hidden = part.layers[0].hidden_size
    x = g("Gather", g.weight("embedding", part.embed_tokens.weight), "words")
    x = g("Transpose", x, perm=[1, 0, 2])
    states = []
    for i, layer in enumerate(part.layers):
        y, h, c = g.lstm(f"layer{i}", layer.lstm, x, "lengths")
        x = g("Add", x, y) if layer.residual else y
        states.append((h, c))
    h, c = (g("Concat", *each, axis=0) for each in zip(*states))
    values = g("Transpose", x, perm=[1, 0, 2])
    project = g.weight("keys.weight", model.decoder.head.key_proj.weight.t())
    keys = g("MatMul", values, project)
    depth = len(part.layers)
    sizes = [g("Slice", g("Shape", "words"), g.whole(i), g.whole(i + 1)) for i in range(2)]
    places = g("Range", g.scalar(0), g("Squeeze", sizes[1]), g.scalar(1))
    ends = g("Unsqueeze", g("Cast", "lengths", to=INT64), g.whole(1))
    inside, outside = (g.weight(f"mask{x}", np.array([x], np.float32)) for x in (0, -np.inf))
    feed = g("Expand", inside, g("Concat", sizes[0], g.whole(hidden), axis=0))
    mask = g("Where", g("Less", places, ends), inside, outside)
    return g.model(
        [("words", INT64, ["B", "S"]), ("lengths", INT32, ["B"])],
        [
            ("keys", keys, FLOAT, ["B", "S", hidden]),
            ("values", values, FLOAT, ["B", "S", hidden]),
            ("mask", mask, FLOAT, ["B", "S"]),
            ("h", h, FLOAT, [depth, "B", hidden]),
            ("c", c, FLOAT, [depth, "B", hidden]),
            *([("feed", feed, FLOAT, ["B", hidden])] if model.decoder.input_feeding else []),
        ],
    )


def decoder(model: Any, *, tied: bool = True) -> Any:
    """`tied`: words that go in and out share their weights in the file, if the model's do."""
    part, head, g = model.decoder, model.decoder.head, Graph()
    hidden, depth = part.layers[0].hidden_size, len(part.layers)
    embedding = part.embed_tokens.weight
    shared = tied and head.output.weight is embedding
    table = g.weight("output.weight" if shared else "embedding", embedding)
    x = g("Gather", table, "words")
    if part.input_feeding:
        x = g("Concat", x, g("Gather", "feed", "order"), axis=1)
    x = g("Unsqueeze", x, g.whole(0))
    before = [
        g("Split", g("Gather", name, "order", axis=1), results=depth, axis=0) for name in "hc"
    ]
    before = [[part] if depth == 1 else part for part in before]
    states = []
    for i, layer in enumerate(part.layers):
        y, *state = g.lstm(f"layer{i}", layer.lstm, x, "", before[0][i], before[1][i])
        x = g("Add", x, y) if layer.residual else y
        states.append(state)
    h, c = (g("Concat", *each, axis=0) for each in zip(*states))
    top = g("Squeeze", x, g.whole(0))
    sentences = g("Slice", g("Shape", "keys"), g.whole(0), g.whole(1))
    query = g("Reshape", top, g("Concat", sentences, g.whole(-1), g.whole(hidden), axis=0))
    score = g("MatMul", query, g("Transpose", "keys", perm=[0, 2, 1]))
    score = g("Add", score, g("Unsqueeze", "mask", g.whole(1)))
    weights = g("Softmax", score, axis=-1)
    context = g("Reshape", g("MatMul", weights, "values"), g.whole(-1, hidden))
    columns = g("Slice", g("Shape", "keys"), g.whole(1), g.whole(2))
    attention = g("Reshape", weights, g("Concat", g.whole(-1), columns, axis=0))
    out = g("Tanh", g.linear("combine", g("Concat", top, context, axis=1), head.combine))
    wide = out if head.out_embed is None else g.linear("out_embed", out, head.out_embed)
    chances = g("LogSoftmax", g.linear("output", wide, head.output), axis=-1)
    words = head.output.weight.size(0)
    gains = g("Add", g("Add", chances, "barred"), g("Reshape", "scores", g.whole(-1, 1)))
    beams = g("Slice", g("Shape", "scores"), g.whole(1), g.whole(2))
    every = g("Reshape", gains, g("Concat", sentences, g("Mul", beams, g.whole(words)), axis=0))
    best, places = g("TopK", every, "count", results=2, axis=-1)
    first_rows = g("Mul", g("Range", g.scalar(0), g("Squeeze", sentences), g.scalar(1)), beams)
    within = g("Div", places, g.scalar(words))
    came_from = g("Add", within, g("Unsqueeze", first_rows, g.whole(1)))
    state, rows = [depth, "R0", hidden], [depth, "R", hidden]
    feeding = part.input_feeding
    return g.model(
        [
            ("words", INT64, ["R"]),
            ("order", INT64, ["R"]),
            ("h", FLOAT, state),
            ("c", FLOAT, state),
            *([("feed", FLOAT, ["R0", hidden])] if feeding else []),
            ("keys", FLOAT, ["B", "S", hidden]),
            ("values", FLOAT, ["B", "S", hidden]),
            ("mask", FLOAT, ["B", "S"]),
            ("scores", FLOAT, ["B", "K"]),
            ("barred", FLOAT, [words]),
            ("count", INT64, [1]),
        ],
        [
            ("next_scores", best, FLOAT, ["B", "N"]),
            ("next_words", g("Mod", places, g.scalar(words)), INT64, ["B", "N"]),
            ("next_order", came_from, INT64, ["B", "N"]),
            ("attention", attention, FLOAT, ["R", "S"]),
            ("next_h", h, FLOAT, rows),
            ("next_c", c, FLOAT, rows),
            *([("next_feed", out, FLOAT, ["R", hidden])] if feeding else []),
        ],
    )


def language_model(model: Any, *, tied: bool = True) -> Any:
    part, g = model.decoder, Graph()
    shared = tied and part.output_weight is part.embed_tokens.weight
    table = g.weight("output.weight" if shared else "embedding", part.embed_tokens.weight)
    x = g("Transpose", g("Gather", table, "words"), perm=[1, 0, 2])
    inputs, outputs = [("words", INT64, ["B", "T"])], []
    for i, layer in enumerate(part.layers):
        state = (FLOAT, [1, "B", layer.lstm.hidden_size])
        x, h, c = g.lstm(f"layer{i}", layer.lstm, x, "", f"h{i}", f"c{i}")
        inputs += [(f"h{i}", *state), (f"c{i}", *state)]
        outputs += [(f"next_h{i}", h, *state), (f"next_c{i}", c, *state)]
    words, width = part.output_weight.shape
    rows = g("Reshape", g("Transpose", x, perm=[1, 0, 2]), g.whole(-1, width))
    output = [g.weight("output.weight", part.output_weight)]
    output.append(g.weight("output.bias", part.output_bias.squeeze(1)))
    chances = g("LogSoftmax", g("Gemm", rows, *output, transB=1), axis=-1)
    shape = g("Concat", g("Shape", "words"), g.whole(words), axis=0)
    chances = g("Reshape", chances, shape)
    return g.model(inputs, [("log_probs", chances, FLOAT, ["B", "T", words]), *outputs])

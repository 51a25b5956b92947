"""What does an LSTM layer cost in chunks of time: the fused kernel, and the split backward pass?

    OMP_NUM_THREADS=1 python benchmarks/lstm_chunks.py --hidden 512 --sentences 64 --steps 24

A stage of the wavefront runs its layers chunk by chunk (docs/hybrid.md). `fused` is PyTorch's LSTM
with a small autograd graph for each chunk, `split` models/split_lstm.py, whose weights get their
gradients at the end. Milliseconds forward and backward, the fastest of `--repeat`.
"""

from __future__ import annotations

import argparse
import time

import common  # noqa: F401  (makes the package importable)
import torch

from fairseq_hybrid.backends.wavefront.stacks import GraphStack, SplitStack
from fairseq_hybrid.models.allocator import keep_large_buffers
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.models.packing import Packing


def milliseconds(kind: type, layer: LSTMLayer, packing: Packing, length: int) -> float:
    rows = packing.rows_N.numel()
    x, dy = torch.randn(rows, layer.hidden_size), torch.randn(rows, layer.hidden_size)
    cuts = [*range(0, packing.steps, length), packing.steps]
    chunks = list(zip(cuts, cuts[1:]))
    begin = time.perf_counter()
    stack = kind([layer], packing, x, None)
    for chunk in chunks:
        stack.forward(*chunk)
    stack.begin_backward(None)
    for chunk in reversed(chunks):
        stack.backward(*chunk, dy[packing.chunk(*chunk)[0]])
    stack.weight_gradients()
    return 1000 * (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    keep_large_buffers()
    layer = LSTMLayer(options.hidden, options.hidden)
    words = torch.ones(options.sentences, options.steps, dtype=torch.long)
    packing = Packing.from_tokens(words, pad=0)
    print("| steps in a chunk | fused, ms | split, ms |\n|--:|--:|--:|")
    for length in sorted({options.steps, 4, 3, 2, 1}, reverse=True):
        best = [
            min(milliseconds(kind, layer, packing, length) for _ in range(1 + options.repeat))
            for kind in (GraphStack, SplitStack)
        ]
        print(f"| {length} | {best[0]:.0f} | {best[1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()

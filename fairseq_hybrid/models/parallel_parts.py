"""What a model hands to a wrapper that spreads it over devices.

Parallelism stays outside the models: they are plain single-device modules, and a `--ddp-backend`
takes them apart through this interface. Their own `forward` is made of the same pieces.

Shape suffixes: B sentences, T target and S source columns, M packed source and N packed target
rows (packing.py), E embedding, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairseq_hybrid.models.attention import AttentionSoftmax
from fairseq_hybrid.models.lstm_layer import LSTMLayer, State
from fairseq_hybrid.models.packing import Packing


@dataclass(frozen=True)
class ParallelParts:
    """The model's pieces for a wrapper that places them on several devices.

    The forward pass in these terms, for any split of the layers and of time:

        src = Packing.from_tokens(src_tokens, source_pad)
        tgt = Packing.from_tokens(prev_output_tokens, target_pad)
        x_ME = embed_source(src.pack(src_tokens))
        x_NE = embed_target(tgt.pack(prev_output_tokens))
        enc_MH, states = run_layers(encoder_layers, x_ME, src.batch_sizes)
        states = [join_state(state, src, tgt) for state in states]
        dec_NH, _ = run_layers(decoder_layers, x_NE, tgt.batch_sizes, states)
        logits_NV, attn_BTS = head(dec_NH, tgt, enc_MH, src)
        return net_output(logits_NV, attn_BTS, tgt)

    Rows [a, b) of time are `src.chunk(a, b)`; states carry over from chunk to chunk. Encoder
    layer i and decoder layer i belong on the same device, as the latter starts from the former's
    state. All dropout is inside these pieces.
    """

    encoder_layers: tuple[LSTMLayer, ...]
    decoder_layers: tuple[LSTMLayer, ...]
    embed_source: Callable[[Tensor], Tensor]
    embed_target: Callable[[Tensor], Tensor]
    source_embedding: nn.Embedding
    """where `embed_source` looks words up; may share its weight with the two below"""
    target_embedding: nn.Embedding
    source_pad: int
    target_pad: int
    head: AttentionSoftmax
    net_output: Callable[[Tensor, Tensor, Packing], tuple[Tensor, dict[str, Any]]]
    whole_sentence_layers: int
    """the first so many encoder layers (0 or 1) read backwards too: no time chunks for them"""
    decoder_splits: bool
    """False with input feeding: all of the decoder then runs in one place, by `decode`"""
    decode: Callable[[Tensor, Tensor, Packing, list[State]], tuple[Tensor, dict[str, Any]]]
    """(prev_output_tokens, enc_MH, src, states of the encoder layers) → net_output"""


def join_state(state: State, src: Packing, tgt: Packing) -> State:
    """An encoder layer's final state as its decoder layer's first one: only the order differs."""
    order_B = src.inverse_B[tgt.order_B]
    return state[0].index_select(0, order_B), state[1].index_select(0, order_B)

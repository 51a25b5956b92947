"""The attention-softmax part of a translation model: all of it that is not recurrent.

Luong et al. (2015), general score: `score(h, s) = h · W s`, a softmax over the source positions,
the context `c` as the weighted mean of the encoder's top states, the attentional vector
`tanh(Wc [h; c])`, and the projection to the vocabulary. Nothing here depends on time, so all
target words of a batch are computed at once, and in data-parallel training this one module is
what every worker runs on its own sentences.

Shape suffixes: B sentences, T target columns, S source columns, N packed target rows, M packed
source rows (see packing.py), H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_hybrid.models.dropout import Dropout
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.products import apply


class Memory(NamedTuple):
    """What the decoder reads of the source: computed once per sentence."""

    keys_BSH: Tensor
    values_BSH: Tensor
    mask_BS: Tensor
    """true on padding"""

    def select(self, sentences: Tensor) -> Memory:
        return Memory(*(part.index_select(0, sentences) for part in self))


class AttentionSoftmax(nn.Module):
    """Decoder top states and encoder top states in, logits out."""

    def __init__(
        self,
        hidden_size: int,
        out_embed_dim: int,
        vocab_size: int,
        *,
        dropout: float = 0.0,
        shared_weight: nn.Parameter | None = None,
    ):
        super().__init__()
        self.key_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.combine = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.dropout = Dropout(dropout, module_name=type(self).__name__)
        narrow = out_embed_dim != hidden_size
        self.out_embed = nn.Linear(hidden_size, out_embed_dim) if narrow else None
        self.output = nn.Linear(out_embed_dim, vocab_size, bias=shared_weight is None)
        for weight in self.parameters():
            nn.init.uniform_(weight, -0.1, 0.1)
        if shared_weight is not None:
            self.output.weight = shared_weight

    def forward(
        self,
        dec_NH: Tensor,
        tgt_packing: Packing,
        enc_MH: Tensor,
        src_packing: Packing,
    ) -> tuple[Tensor, Tensor]:
        """Packed top states of a batch → logits_NV of its packed target rows, attention_BTS."""
        out_NH, attn_BTS = self.vectors(dec_NH, tgt_packing, enc_MH, src_packing)
        return self.logits(out_NH), attn_BTS

    def vectors(
        self, dec_NH: Tensor, tgt_packing: Packing, enc_MH: Tensor, src_packing: Packing
    ) -> tuple[Tensor, Tensor]:
        """The same up to the attentional vectors_NH, which `logits` takes."""
        memory = self.read(enc_MH, src_packing)
        context_BTH, attn_BTS = self.attend(tgt_packing.unpack(dec_NH), memory)
        return self.attentional(dec_NH, tgt_packing.pack(context_BTH)), attn_BTS

    def read(self, enc_MH: Tensor, packing: Packing) -> Memory:
        """Project the encoder's top states to keys, once for all target words."""
        return Memory(
            packing.unpack(apply(self.key_proj, enc_MH)),
            packing.unpack(enc_MH),
            packing.padding_mask(),
        )

    @staticmethod
    def attend(query_BTH: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Context vectors and attention weights for any number of queries per sentence."""
        score_BTS = torch.bmm(query_BTH, memory.keys_BSH.transpose(1, 2))
        score_BTS = score_BTS.masked_fill(memory.mask_BS.unsqueeze(1), float("-inf"))
        attn_BTS = F.softmax(
            score_BTS, dim=-1, dtype=torch.promote_types(query_BTH.dtype, torch.float32)
        )
        attn_BTS = attn_BTS.type_as(query_BTH)
        return torch.bmm(attn_BTS, memory.values_BSH), attn_BTS

    def attentional(self, dec_NH: Tensor, context_NH: Tensor) -> Tensor:
        """`dropout(tanh(Wc [h; c]))`"""
        both_NU = torch.cat((dec_NH, context_NH), dim=1)
        return self.dropout(torch.tanh(apply(self.combine, both_NU)))

    def logits(self, out_NH: Tensor) -> Tensor:
        """Attentional vectors → scores of all words."""
        return apply(self.output, self.features(out_NH))

    def has_plain_output(self) -> bool:
        """Whether `output` is just a product: no hooks on it, nothing mixed in."""
        output = self.output
        hooks = output._forward_hooks or output._forward_pre_hooks or output._backward_hooks
        return type(output) is nn.Linear and not hooks

    def features(self, out_NH: Tensor) -> Tensor:
        """Attentional vectors → what the rows of `output` are multiplied with."""
        return out_NH if self.out_embed is None else self.dropout(self.out_embed(out_NH))

"""`--arch hybrid_lstm`: an attention LSTM for translation, its decoder not waiting for attention.

A stack of LSTM layers reads the source, another one of the same depth, started layer by layer from
its final states, reads the target, and an attention-softmax head turns the two top layers into
word probabilities (Luong et al. 2015). Without `--input-feeding` no layer ever needs the head's
result, so each layer is one kernel call over all words and the head is computed for all target
words at once.

    encode:  embed → run_layers                        (packing.py, lstm_layer.py)
    decode:  embed → run_layers → head                 (attention.py)
    with --input-feeding:  embed → run_with_feeding → head.project    (input_feeding.py)

The model is a plain single-device one. What is needed to spread it over devices it hands out as
`parallel_parts()`: the very pieces its own `forward` is made of.

    fairseq-train DATA --user-dir fairseq_hybrid --arch hybrid_lstm --optimizer adam --lr 1e-3 ...

Shape suffixes: B sentences, S source and T target columns, M packed source and N packed target
rows (packing.py), R rows of a beam, E embedding, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from fairseq import utils
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from fairseq_hybrid.models import hybrid_lstm_options as options
from fairseq_hybrid.models.allocator import keep_large_buffers
from fairseq_hybrid.models.attention import AttentionSoftmax, Memory
from fairseq_hybrid.models.dropout import Dropout
from fairseq_hybrid.models.input_feeding import run_with_feeding
from fairseq_hybrid.models.lstm_layer import LSTMLayer, State, run_layers
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import ParallelParts

MAX_POSITIONS = 100_000


@dataclass(frozen=True)
class EncoderOut:
    """Top states and final states of a batch, and which hypothesis reads which sentence."""

    top_MH: Tensor
    packing: Packing
    states: list[State]
    """final state of every layer, in the order of the batch"""
    rows_R: Tensor | None = None
    """row of the decoder → sentence; None: one row per sentence. Beam search reorders only this."""

    def __getitem__(self, index: int) -> Tensor:
        """torch's backward hooks (fairseq's NanDetector has them) look for a tensor this way."""
        return (self.top_MH,)[index]

    @classmethod
    def from_layers(cls, top_MH: Tensor, packing: Packing, states: list[State]) -> EncoderOut:
        """From what `run_layers` returned, whose states are in the packing's order."""
        back_B = packing.inverse_B
        states = [(h.index_select(0, back_B), c.index_select(0, back_B)) for h, c in states]
        return cls(top_MH=top_MH, packing=packing, states=states)

    def initial_states(self, order: Tensor) -> list[State]:
        """The decoder's first states, its rows taken in `order`."""
        order = order if self.rows_R is None else self.rows_R[order]
        return [(h.index_select(0, order), c.index_select(0, order)) for h, c in self.states]


@register_model("hybrid_lstm")
class HybridLSTMModel(FairseqEncoderDecoderModel):
    """LSTM encoder and decoder of equal depth with Luong attention."""

    add_args = staticmethod(options.add_args)

    @classmethod
    def build_model(cls, args, task):
        options.set_defaults(args)
        options.validate(args, task.source_dictionary, task.target_dictionary)
        keep_large_buffers()
        src_embed = _embedding(
            task.source_dictionary, args.encoder_embed_dim, args.encoder_embed_path
        )
        tgt_embed = src_embed
        if not args.share_all_embeddings:
            tgt_embed = _embedding(
                task.target_dictionary, args.decoder_embed_dim, args.decoder_embed_path
            )
        src_embed.weight.requires_grad_(not args.encoder_freeze_embed)
        if args.decoder_freeze_embed:
            tgt_embed.weight.requires_grad_(False)
        return cls(
            HybridLSTMEncoder(args, task.source_dictionary, src_embed),
            HybridLSTMDecoder(args, task.target_dictionary, tgt_embed),
        )

    num_updates = 0

    def forward(self, src_tokens, src_lengths, prev_output_tokens, features_only=False):
        """fairseq's net_input → (logits_BTV, {"attn": [attention_BTS or None]}).

        While training the logits are those of the real target words only, logits_NV: see
        `HybridLSTMDecoder.net_output` and `get_targets`. With `features_only` what the output
        weights would score, instead of the logits.
        """
        encoder_out = self.encoder(src_tokens, src_lengths)
        return self.decoder(prev_output_tokens, encoder_out, features_only=features_only)

    def get_targets(self, sample, net_output):
        """The targets of the rows `forward` gave logits for."""
        packing = net_output[1].get("packing")
        return sample["target"] if packing is None else packing.pack(sample["target"])

    def softmax_parameters(self) -> tuple[nn.Parameter, nn.Parameter | None]:
        """Output weight_VE and bias_V, for `--criterion sampled_softmax`."""
        output = self.decoder.head.output
        return output.weight, output.bias

    def has_plain_softmax(self) -> bool:
        """Whether these alone make logits of features: nobody looks on, or changes gradients."""
        return self.decoder.head.has_plain_output()

    def use_row_gradients(self) -> None:
        """Let the embeddings' gradients consist of the rows of the words that were looked up."""
        self.encoder.embed_tokens.sparse = self.decoder.embed_tokens.sparse = True

    def rows_read(self, src_tokens, prev_output_tokens, **_) -> dict[nn.Parameter, Tensor]:
        """Which rows of the embeddings a batch looks up."""
        source, target = self.encoder.embed_tokens.weight, self.decoder.embed_tokens.weight
        if source is target:
            return {source: torch.cat((src_tokens.flatten(), prev_output_tokens.flatten()))}
        return {source: src_tokens, target: prev_output_tokens}

    def set_num_updates(self, num_updates: int) -> None:
        self.num_updates = num_updates
        super().set_num_updates(num_updates)

    def parallel_parts(self) -> ParallelParts:
        """The pieces of this model, for a wrapper that spreads them over devices."""
        encoder, decoder = self.encoder, self.decoder
        return ParallelParts(
            encoder_layers=tuple(encoder.layers),
            decoder_layers=tuple(decoder.layers),
            embed_source=encoder.embed,
            embed_target=decoder.embed,
            source_embedding=encoder.embed_tokens,
            target_embedding=decoder.embed_tokens,
            source_pad=encoder.padding_idx,
            target_pad=decoder.padding_idx,
            head=decoder.head,
            net_output=decoder.net_output,
            whole_sentence_layers=int(encoder.layers[0].bidirectional),
            decoder_splits=not decoder.input_feeding,
            decode=lambda tokens, *encoded, **how: decoder(
                tokens, EncoderOut.from_layers(*encoded), **how
            ),
        )


class HybridLSTMEncoder(FairseqEncoder):
    def __init__(self, args, dictionary, embed_tokens: nn.Embedding):
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.max_source_positions = getattr(args, "max_source_positions", MAX_POSITIONS)
        self.embed_tokens = embed_tokens
        self.dropout_in = Dropout(args.encoder_dropout_in, module_name=type(self).__name__)
        hidden = args.encoder_hidden_size
        self.layers = nn.ModuleList(
            LSTMLayer(
                hidden if i else args.encoder_embed_dim,
                hidden,
                dropout=args.encoder_dropout_out,
                residual=args.residual and i > 0,
                forget_bias=args.forget_bias,
                bidirectional=args.encoder_bidirectional_first and i == 0,
            )
            for i in range(args.encoder_layers)
        )

    def embed(self, tokens_M: Tensor) -> Tensor:
        """Packed rows of words → packed rows of vectors."""
        return self.dropout_in(self.embed_tokens(tokens_M))

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None) -> EncoderOut:
        """`src_lengths` is not needed: padding is where the tokens say it is."""
        packing = Packing.from_tokens(src_tokens, self.padding_idx)
        x_ME = self.embed(packing.pack(src_tokens))
        top_MH, states = run_layers(self.layers, x_ME, packing.batch_sizes)
        return EncoderOut.from_layers(top_MH, packing, states)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """No state is copied: only the list of who reads what changes."""
        rows_R = encoder_out.rows_R
        return replace(encoder_out, rows_R=new_order if rows_R is None else rows_R[new_order])

    def max_positions(self):
        return self.max_source_positions


class HybridLSTMDecoder(FairseqIncrementalDecoder):
    def __init__(self, args, dictionary, embed_tokens: nn.Embedding):
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.max_target_positions = getattr(args, "max_target_positions", MAX_POSITIONS)
        self.input_feeding = args.input_feeding
        self.need_attn = True
        # --ignore-prefix-size cuts columns off the logits, so it must be given columns.
        self.packed_logits = not getattr(args, "ignore_prefix_size", 0)
        self.embed_tokens = embed_tokens
        self.dropout_in = Dropout(args.decoder_dropout_in, module_name=type(self).__name__)
        hidden, depth = args.decoder_hidden_size, args.decoder_layers
        first = args.decoder_embed_dim + (hidden if args.input_feeding else 0)
        self.layers = nn.ModuleList(
            LSTMLayer(
                hidden if i else first,
                hidden,
                # Above the top layer the dropout is that of the attentional vector, in the head.
                dropout=args.decoder_dropout_out if i < depth - 1 else 0.0,
                residual=args.residual and i > 0,
                forget_bias=args.forget_bias,
            )
            for i in range(depth)
        )
        shares = args.share_decoder_input_output_embed or args.share_all_embeddings
        self.head = AttentionSoftmax(
            hidden,
            args.decoder_out_embed_dim,
            len(dictionary),
            dropout=args.decoder_dropout_out,
            shared_weight=embed_tokens.weight if shares else None,
        )

    def embed(self, tokens_N: Tensor) -> Tensor:
        """Packed rows of words → packed rows of vectors."""
        return self.dropout_in(self.embed_tokens(tokens_N))

    def forward(
        self,
        prev_output_tokens,
        encoder_out: EncoderOut,
        incremental_state=None,
        features_only=False,
        **_,
    ):
        """All target words at once or, given `incremental_state`, the next one."""
        if incremental_state is not None:
            return self._step(prev_output_tokens, encoder_out, incremental_state)
        tgt = Packing.from_tokens(prev_output_tokens, self.padding_idx)
        x_NE = self.embed(tgt.pack(prev_output_tokens))
        states = encoder_out.initial_states(tgt.order_B)
        enc_MH, src = encoder_out.top_MH, encoder_out.packing
        if self.input_feeding:
            memory = self.head.read(enc_MH, src).select(tgt.order_B)
            out_NH, attn_NS = run_with_feeding(
                self.layers, self.head, x_NE, tgt.batch_sizes, states, memory
            )
            attn_BTS = tgt.unpack(attn_NS)
        else:
            dec_NH, _ = run_layers(self.layers, x_NE, tgt.batch_sizes, states)
            out_NH, attn_BTS = self.head.vectors(dec_NH, tgt, enc_MH, src)
        score = self.head.features if features_only else self.head.logits
        return self.net_output(score(out_NH), attn_BTS, tgt)

    def net_output(self, logits_NV: Tensor, attn_BTS: Tensor, tgt: Packing) -> tuple[Tensor, dict]:
        """What fairseq gets to see: padded logits, or only the real words' while training.

        No softmax and no loss is then computed on padding, and nothing as wide as the vocabulary
        is copied. Criterions find the targets of the same rows by `get_targets`, as they always do.
        """
        if self.training and self.packed_logits:
            return logits_NV, {"attn": [None], "packing": tgt}
        return tgt.unpack(logits_NV), self._extra(attn_BTS)

    def _step(self, prev_output_tokens, encoder_out, incremental_state):
        """One more word for every hypothesis of a beam (several if it starts with a prefix)."""
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is None and prev_output_tokens.size(1) > 1:
            prefixes = (prev_output_tokens[:, : t + 1] for t in range(prev_output_tokens.size(1)))
            steps = [self._step(prefix, encoder_out, incremental_state) for prefix in prefixes]
            attn = (
                None
                if steps[0][1]["attn"][0] is None
                else torch.cat([s[1]["attn"][0] for s in steps], 1)
            )
            return torch.cat([logits for logits, _ in steps], 1), {"attn": [attn]}
        tokens_R = prev_output_tokens[:, -1]
        rows = tokens_R.numel()
        if cached is None:
            states = encoder_out.initial_states(torch.arange(rows, device=tokens_R.device))
            feed_RH = torch.zeros_like(states[0][0])
        else:
            states, feed_RH = list(zip(cached["h"], cached["c"])), cached["feed"]
        memory = self._memory(encoder_out, rows, incremental_state)
        x_RE = self.embed(tokens_R)
        if self.input_feeding:
            x_RE = torch.cat((x_RE, feed_RH), dim=1)
        dec_RH, states = run_layers(self.layers, x_RE, torch.tensor([rows]), states)
        # The hypotheses of a sentence are to its memory what the words of a target are.
        dec_BTH = dec_RH.view(memory.mask_BS.size(0), -1, dec_RH.size(1))
        context_BTH, attn_BTS = self.head.attend(dec_BTH, memory)
        out_RH = self.head.attentional(dec_RH, context_BTH.flatten(0, 1))
        attn_RS = attn_BTS.flatten(0, 1)
        h, c = zip(*states)
        self.set_incremental_state(incremental_state, "decoder", {"h": h, "c": c, "feed": out_RH})
        return self.head.logits(out_RH).unsqueeze(1), self._extra(attn_RS.unsqueeze(1))

    def _memory(self, encoder_out: EncoderOut, rows: int, incremental_state) -> Memory:
        """What the rows of a beam read: an entry for each block of rows of the same sentence.

        Beam search keeps the hypotheses of a sentence together, so nothing is copied from step to
        step but when a sentence is finished. Any other order works too, with an entry per row.
        """
        cached = self.get_incremental_state(incremental_state, "memory")
        if cached is None:
            whole = self.head.read(encoder_out.top_MH, encoder_out.packing)
            everyone = torch.arange(encoder_out.packing.shape[0], device=whole.mask_BS.device)
            cached = {"whole": whole, "current": whole, "sentences": everyone}
        sentences = encoder_out.rows_R
        if sentences is None:
            sentences = torch.arange(rows, device=cached["sentences"].device)
        blocks, sizes = sentences.unique_consecutive(return_counts=True)
        if (sizes == sizes[0]).all():
            sentences = blocks
        if not torch.equal(sentences, cached["sentences"]):
            cached = cached | {"current": cached["whole"].select(sentences), "sentences": sentences}
        self.set_incremental_state(incremental_state, "memory", cached)
        return cached["current"]

    def _extra(self, attn_BTS: Tensor) -> dict:
        return {"attn": [attn_BTS if self.need_attn and not self.training else None]}

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Hypotheses follow beam search; the memory is found through `EncoderOut.rows_R`."""
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is not None:
            pick = lambda x: x.index_select(0, new_order)  # noqa: E731
            h, c = tuple(map(pick, cached["h"])), tuple(map(pick, cached["c"]))
            cached = {"h": h, "c": c, "feed": pick(cached["feed"])}
            self.set_incremental_state(incremental_state, "decoder", cached)

    def max_positions(self):
        return self.max_target_positions

    def make_generation_fast_(self, need_attn=False, **_):
        self.need_attn = need_attn


def _embedding(dictionary, embed_dim: int, path: str | None) -> nn.Embedding:
    embed = nn.Embedding(len(dictionary), embed_dim, padding_idx=dictionary.pad())
    nn.init.uniform_(embed.weight, -0.1, 0.1)
    nn.init.zeros_(embed.weight[dictionary.pad()])
    if path:
        vectors = utils.parse_embedding(path)
        utils.print_embed_overlap(vectors, dictionary)
        embed = utils.load_embedding(vectors, dictionary, embed)
    return embed


@register_model_architecture("hybrid_lstm", "hybrid_lstm")
def hybrid_lstm(args):
    """Small: trains on a laptop."""
    options.set_defaults(args)


@register_model_architecture("hybrid_lstm", "hybrid_lstm_iwslt")
def hybrid_lstm_iwslt(args):
    """For some hundred thousand sentence pairs."""
    options.set_defaults(args, encoder_hidden_size=512, dropout=0.3)


@register_model_architecture("hybrid_lstm", "hybrid_lstm_wmt")
def hybrid_lstm_wmt(args):
    """For millions of sentence pairs; the size of Ono et al. (2019) in our reading."""
    options.set_defaults(
        args, encoder_embed_dim=512, encoder_hidden_size=1024, encoder_layers=4, dropout=0.3
    )

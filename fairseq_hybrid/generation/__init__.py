"""Beam search for `hybrid_lstm`, in place of fairseq's where it does the same."""

from fairseq_hybrid.generation import beam_search

__all__ = ["beam_search"]

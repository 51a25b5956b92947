"""Beam search for `hybrid_lstm`, in place of fairseq's where it does the same."""

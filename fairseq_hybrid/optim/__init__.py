"""The optimizer around fairseq's, and faster steps for it."""

"""Optimizers, and what they need to update single rows."""

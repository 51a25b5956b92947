"""How tensors travel between workers: messages, shared memory, and the time they take."""

"""``--ddp-backend``: how the work is spread over workers."""

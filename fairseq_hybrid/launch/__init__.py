"""Who starts which workers, and what happens when one of them ends."""

"""What fairseq 0.12 lacks on current Python and torch; plugin.py installs it, entry by entry."""

"""``fairseq-hybrid-report``: how trainings went, as one page.

    log.py        what a log says, whatever state it is in
    settings.py   the settings in it, those that differ between runs, the command that goes on
    run.py        a run: its log and what is found beside it
    samples.py    sentences as its model translates them
    sections.py   the parts of the page
    command.py    the command

The page itself is in ``fairseq_hybrid.pages``. Files may come from anywhere, be cut off or still
being written: what cannot be read is left out, and the page says so. None of it is loaded by
training.
"""

"""What is done with a trained model: translate text, score text, export it, convert another's.

    trained.py     a checkpoint with its dictionaries and sentence pieces, found beside it
    lines.py       text of any kind as lines, and what is wrong with one
    translator.py  sentences in, translations out
    attention.py   a picture of what a translation looked at
    translate.py, score.py, export.py, convert.py: the commands

``commands.py`` is what the commands share. None of it is loaded by training.
"""

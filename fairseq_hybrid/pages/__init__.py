"""HTML pages that need nothing beside them: no network, no library, no font.

    skeleton.py   the page with its style, and small parts of it: tables, figures, commands
    charts.py     curves
    timelines.py  who did what when

Whoever calls decides what is shown. Everything that is shown is escaped here, so text may come
from anywhere.
"""

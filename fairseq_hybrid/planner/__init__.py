"""Which backend, which layers where, what chunk of time: measured, simulated, chosen, drawn.

    job.py         what is to be trained: a model's parts, the shapes of its batches
    profile.py     measures this machine, costs.py turns that into times
    devices.py     times on devices that are not here, from operation counts ("projected")
    partition.py   layers to stages, exactly
    systems.py     what each backend's workers do in an update; simulate.py plays it
    choose.py      all alternatives, and the fastest
    plan.py        the plan as a file; option.py takes it into training (--hybrid-plan)
    command.py     fairseq-hybrid-plan, with tables.py, picture.py and page.py

Importing the package makes ``--hybrid-plan`` known; the rest is loaded when it is needed.
"""

from fairseq_hybrid.planner import option

__all__ = ["option"]

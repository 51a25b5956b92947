"""Which backend, which layers where, what chunk of time: measured, simulated, chosen, drawn.

job.py         what is to be trained: a model's parts, the shapes of its batches
profile.py     measures this machine, costs.py turns that into times
devices.py     times on devices that are not here, from operation counts ("projected")
partition.py   layers to stages, exactly
programs.py    what each backend's workers do in an update; simulate.py plays it
choose.py      all alternatives, and the fastest
plan.py        the plan as a file; option.py applies it to training (--hybrid-plan)
command.py     fairseq-hybrid-plan, with tables.py, pictures.py and page.py
"""

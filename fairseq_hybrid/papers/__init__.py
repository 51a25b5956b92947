"""What one paper needs and the core does not know: it is built on the core's hooks.

``asynchronous.py`` is the baseline of Xiao et al. (2017); ``ng_sgd.py``, with its mathematics in
``natural_gradient.py``, and ``schedules.py`` are what Su & Chen (2015) train with. Their
pretraining is a package beside.
"""

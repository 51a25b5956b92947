"""`fairseq-hybrid-pretrain`: a start for deep sigmoid networks, layer by layer and without targets.

``rbm.py`` is the mathematics of one layer, ``windows.py`` the examples, ``layerwise.py`` the
training of all layers with saving and several workers, ``options.py`` the flags and what is
refused, ``command.py`` the command.
"""

"""The operators in plain PyTorch, for any device and dtype: the formulas, and no decisions.

The kernels in ``cpu`` and ``gpu`` are checked against these, which compute wherever no kernel does.
"""

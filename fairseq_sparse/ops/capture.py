"""Tell tensors that hold numbers from tensors that PyTorch records, transforms or distributes.

A kernel that is handed addresses must never see the latter: under ``torch.compile``, ``export``,
fake tensors, ``torch.func`` transforms, tracing and tensor subclasses an op is computed by PyTorch
operators alone. The one step that PyTorch operators cannot express without looking at values, the
search for the threshold of alpha-entmax, is itself an operator: see ``operators.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN_TYPES = (Tensor, Parameter)

# Set by backends.use("reference"), so that a dispatch mode sees PyTorch's own operators.
kernels_are_off = False


def is_captured(*tensors: Tensor) -> bool:
    """Return whether PyTorch now records, transforms or distributes operations on these tensors."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    # Within a transform plain tensors count, too: autograd functions would need its support.
    if torch._C._are_functorch_transforms_active():
        return True
    if torch._C._len_torch_dispatch_stack() > 0 and not kernels_are_off:
        return True
    for x in tensors:
        if type(x) not in _PLAIN_TYPES:
            return True
        if x.is_neg():  # the memory holds -x
            return True
    return False

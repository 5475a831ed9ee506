"""The kernels for GPUs, in Triton: rows of logits and rectified attention.

Importing this registers them. Triton itself is imported for the first CUDA tensor. Each kernel
states beside itself when it applies, and none decides a result before it has been compared with the
reference on that GPU (``verification.py``).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_sparse.ops.gpu.availability import has_kernels
from fairseq_sparse.ops.operators import kernel

# The operators with a kernel: a function of the same name, and ``fits_`` with its name.
_NAMES = ("entmax", "entmax_backward", "row_loss", "row_loss_backward", "linear_loss")
_NAMES += ("attention", "attention_backward")


def fits(name: str, *args: Any) -> bool:
    """Return whether the kernel of an operator takes these arguments.

    A call may be in one graph with others that ``torch.compile`` sees; it is then left to PyTorch.
    """
    if torch.compiler.is_compiling():
        return False
    tensors = [x for x in args if isinstance(x, Tensor)]
    # A tensor without dimensions, such as tau, may be on a CPU; kernels move it.
    devices = {x.device for x in tensors if x.dim() > 0}
    return (
        len(devices) == 1
        and all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)  # no fake ones
        and has_kernels(devices.pop())
        and getattr(_module(name), f"fits_{name}")(*args)
    )


def _module(name: str) -> ModuleType:
    module = "rela_attention" if name.startswith("attention") else "rows"
    return import_module(f"{__name__}.{module}")


def _register(name: str) -> None:
    def call(*args: Any) -> Any:
        return getattr(_module(name), name)(*args)

    kernel("gpu", name, lambda *args: fits(name, *args))(call)


for _name in _NAMES:
    _register(_name)

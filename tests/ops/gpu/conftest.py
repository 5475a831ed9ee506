"""Without a GPU, kernels run in Triton's interpreter, on tensors of the CPU."""

import functools
import inspect
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter():
    """Search each module of Triton for builtins once, not at every call of a device function.

    The interpreter replaces the builtins at each of these calls, which took half its time.
    """
    if torch.cuda.is_available():
        yield
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")

    @functools.cache
    def names(module):
        members = inspect.getmembers(module)
        return [name for name, member in members if interpreter.tl.core.is_builtin(member)]

    def patch_builtin(module, *others):
        for name in names(module):
            member = getattr(module, name)
            if interpreter.tl.core.is_builtin(member):
                interpreter._patch_attr(module, name, member, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_builtin", patch_builtin)
        yield

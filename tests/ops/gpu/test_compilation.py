"""The kernels are compiled for GPUs that this machine does not have.

Triton's interpreter accepts programs that its compiler refuses, and shows no compiled code.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

from fork_python import PYTHON
from kernel_compilation import run_compiled

ROOT = Path(__file__).parents[3]


def compile_kernels(*options):
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [PYTHON, ROOT / "scripts/compile_kernels.py", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "86", "89", "90", "100", "120"])
def test_every_kernel_compiles_for_every_gpu(capability):
    done = compile_kernels("--capability", capability)
    assert done.returncode == 0, done.stderr
    assert "kernels compiled" in done.stdout


@pytest.mark.slow_except("48 float16")
@pytest.mark.parametrize("only", ["48 float16", "rela 2x16x64"])
def test_short_rows_and_heads_compile(only):
    done = compile_kernels("--capability", "90", "--only", only)
    assert done.returncode == 0, done.stderr


def compiled(calls, capability=80):
    """Return the name and the machine code of each kernel that the calls launch."""
    import compile_kernels

    kernels = []
    with compile_kernels.compiling_for(capability, kernels):
        for call in calls:
            call()
    return [(name, kernel.asm["ptx"]) for name, kernel in kernels]


def other_values_compile_nothing():
    """Check that values that change between updates are not constants of a kernel."""
    from fairseq_sparse.ops.gpu import rows

    def calls(count, alpha, ignore_index):
        z, target = torch.randn(count, 304), torch.zeros(count, dtype=torch.int64)
        solution, options = torch.zeros(4, count, dtype=torch.float64), (alpha, 0.1, ignore_index)
        yield lambda: rows.entmax(z, None, alpha, "newton", 0, False)
        yield lambda: rows.entmax_backward(z, z, alpha)
        yield lambda: rows.row_loss(z, target, None, *options, "newton", 0)
        yield lambda: rows.row_loss(z, target, torch.tensor(0.3), *options, "newton", 0)
        yield lambda: rows.row_loss_backward(solution[0], z, target, solution, *options)

    once = compiled(calls(2, 1.3, 7))
    again = compiled([*calls(2, 1.3, 7), *calls(1, 1.31, 1), *calls(16, 1.7, 16)])
    assert sorted(name for name, _ in again) == sorted(name for name, _ in once)


@pytest.mark.slow
def test_a_changing_alpha_compiles_nothing(tmp_path):
    run_compiled(__file__, "other_values_compile_nothing", tmp_path)


def long_rows_and_heads_are_loaded_well():
    """Check that loops load blocks while they compute with others, and 16 bytes at a time."""
    from fairseq_sparse.ops.gpu import rows
    from fairseq_sparse.ops.gpu.rela_attention import attention

    z, target = torch.randn(2, 8000, dtype=torch.float16), torch.zeros(2, dtype=torch.int64)
    solution, options = torch.zeros(4, 2, dtype=torch.float64), (1.5, 0.0, -100)
    heads = torch.randn(3, 1, 1, 300, 64, dtype=torch.float16)
    calls = (
        lambda: rows.entmax(z, None, 1.5, "newton", 0, False),
        lambda: rows.entmax_backward(z, z, 1.5),
        lambda: rows.row_loss(z, target, None, *options, "newton", 0),
        lambda: rows.row_loss_backward(solution[0], z, target, solution, *options),
        lambda: attention(*heads, None, None, None, 0.0, 0.125, True, 0.0),
    )
    for name, code in compiled(calls):
        assert re.search(r"cp\.async\.cg\S* .*, 0x10, ", code), name


@pytest.mark.slow
def test_long_rows_and_heads_are_loaded_well(tmp_path):
    run_compiled(__file__, "long_rows_and_heads_are_loaded_well", tmp_path)

"""The kernels are compiled for GPUs that this machine does not have.

Triton's interpreter accepts programs that its compiler refuses, and shows no compiled code.
"""

import os
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
@pytest.mark.parametrize("only", ["48 float16", "rela 1x16x64"])
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
    from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
    from fairseq_sparse.ops.gpu import alpha_relu, entmax, gradients, losses
    from fairseq_sparse.ops.gpu.linear_loss import linear_losses

    def calls(rows, alpha, ignore_index):
        z = torch.randn(rows, 304)
        x, weight = (torch.randn(n, 64, requires_grad=True) for n in (rows, 304))
        target = torch.zeros(rows, dtype=torch.int64)
        yield lambda: entmax.entmax_rows(z, alpha)
        yield lambda: gradients.entmax_gradient(z, z, alpha)
        yield lambda: alpha_relu.alpha_relu_weights(z, 0.3, alpha)
        yield lambda: gradients.alpha_relu_gradient(z, z, alpha)
        for tau in (None, 0.3):
            loss = FenchelYoungLoss(alpha, tau, 0.1, ignore_index, "none")
            yield (
                lambda loss=loss: (
                    losses.row_losses(z.clone().requires_grad_(), target, loss).sum().backward()
                )
            )
            yield lambda loss=loss: linear_losses(x, weight, None, target, loss).sum().backward()

    once = compiled(calls(2, 1.3, 7))
    again = compiled([*calls(2, 1.3, 7), *calls(1, 1.31, 1), *calls(16, 1.7, 16)])
    assert sorted(name for name, _ in again) == sorted(name for name, _ in once)


@pytest.mark.slow
def test_a_changing_alpha_compiles_nothing(tmp_path):
    run_compiled(__file__, "other_values_compile_nothing", tmp_path)


def more_rows_compile_no_product():
    """Check that lists of more rows, which have fewer and longer parts, need no new kernel."""
    from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
    from fairseq_sparse.ops.gpu.candidates import find_candidates

    loss = FenchelYoungLoss(1.5, None, 0.0, -100, "none")
    weight, lengths = torch.randn(2048, 16), set()

    def call(rows):
        x, target = torch.randn(rows, 16), torch.zeros(rows, dtype=torch.int64)
        lengths.add(find_candidates(x, weight, None, target, loss).length)

    assert len(compiled([lambda: call(2), lambda: call(2177)])) == 1
    assert len(lengths) == 2


def test_more_rows_compile_no_product(tmp_path):
    run_compiled(__file__, "more_rows_compile_no_product", tmp_path)


def loops_are_pipelined():
    """Check that a loop loads blocks from memory while it computes with others."""
    from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
    from fairseq_sparse.ops.gpu import entmax, gradients, losses
    from fairseq_sparse.ops.gpu.candidates import find_candidates
    from fairseq_sparse.ops.gpu.rela_attention import rela_attention

    z = torch.randn(2, 8000, requires_grad=True)
    target = torch.zeros(2, dtype=torch.int64)
    loss = FenchelYoungLoss(1.5, None, 0.0, -100, "none")
    x, weight = torch.randn(2, 2, 64, dtype=torch.bfloat16)
    heads = torch.randn(1, 1, 300, 64, dtype=torch.float16, requires_grad=True)
    calls = (
        lambda: entmax.entmax_rows(z.detach(), 1.5),
        lambda: gradients.entmax_gradient(z.detach(), z.detach(), 1.5),
        lambda: losses.row_losses(z, target, loss).sum().backward(),
        lambda: find_candidates(x, weight, None, target, loss),
        lambda: rela_attention(heads, heads, heads, causal=True).sum().backward(),
    )
    kernels = compiled(calls)
    assert len(kernels) > 8
    for name, code in kernels:
        assert "cp.async" in code, name


@pytest.mark.slow
def test_loops_are_pipelined(tmp_path):
    run_compiled(__file__, "loops_are_pipelined", tmp_path)

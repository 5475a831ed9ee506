#!/usr/bin/env python3
"""Compile every Triton kernel for GPUs that need not be present, with the installed Triton.

    python scripts/compile_kernels.py --capability 80 90

The ops are called on tensors of the CPU, with sizes that Triton specialises on (1, multiples of 16)
and others, so the kernels are compiled exactly as they would be launched, but none runs. A kernel
must fit into the shared memory of the GPU, and its divisions and square roots must be correctly
rounded. Capabilities unknown to this Triton are skipped. Exits with status 1 if a kernel fails.
"""

import argparse
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

# The first Triton that knows a capability, and the shared memory available to a program there
# (CUDA C++ Programming Guide, technical specifications per compute capability).
CAPABILITIES = {
    80: ((3, 0), 163 << 10),
    86: ((3, 0), 99 << 10),
    89: ((3, 0), 99 << 10),
    90: ((3, 0), 227 << 10),
    100: ((3, 3), 227 << 10),
    120: ((3, 4), 99 << 10),
}
# Rows of logits (size, dtype, alpha): multiples of 16 and others, in one block or several.
ROWS = (
    *((17, torch.float32, 1.5), (48, torch.float16, 1.5), (300, torch.bfloat16, 2.0)),
    *((4000, torch.float32, 1.3), (7944, torch.float16, 1.5), (5001, torch.bfloat16, 1.5)),
    *((40000, torch.float32, 1.5), (40000, torch.bfloat16, 1.3), (40000, torch.bfloat16, 2.0)),
)
# Queries, keys, width of a head, dtype, and whether there are masks and dropout.
HEADS = (
    *((2, 16, 64, torch.float16, False), (17, 1, 16, torch.float16, True)),
    *((300, 300, 64, torch.float32, True), (300, 300, 48, torch.float32, False)),
    *((200, 201, 64, torch.bfloat16, True), (4096, 4096, 64, torch.float16, True)),
    *((4096, 4096, 128, torch.bfloat16, False), (4096, 4096, 128, torch.float16, True)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--capability", type=int, nargs="+", choices=CAPABILITIES)
    parser.add_argument("--only", default="", help="compile only cases whose name matches this")
    given = parser.parse_args()
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    failed = compiled = 0
    for capability in given.capability or CAPABILITIES:
        if version < CAPABILITIES[capability][0]:
            print(f"sm_{capability}: not known to Triton {triton.__version__}")
            continue
        kernels = []
        with compiling_for(capability, kernels):
            for name, case in cases():
                if re.search(given.only, name):
                    print(f"sm_{capability} {name}", flush=True)  # a compiler can crash
                    failed += not succeeds(case)
        compiled += len(kernels)
        print(
            f"sm_{capability}: {len(kernels)} kernels compiled by Triton {triton.__version__}",
            flush=True,
        )
    if given.only and not compiled:
        sys.exit(f"--only {given.only}: no kernel was compiled")
    sys.exit(failed > 0)


def succeeds(case: Callable[[], object]) -> bool:
    """Call ``case``, print any exception, and return whether there was none."""
    try:
        case()
    except Exception:
        print("FAILED:", file=sys.stderr)
        traceback.print_exc(limit=-3)
        return False
    return True


@contextmanager
def compiling_for(capability: int, kernels: list) -> Iterator[None]:
    """Return a context in which launching a kernel compiles it and appends it to ``kernels``."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run, room = JITFunction.run, CAPABILITIES[capability][1]

    def compile_only(self, *args, grid, warmup=True, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if all(kernel is not other for _, other in kernels):
            name = f"{Path(self.fn.__code__.co_filename).stem}.{self.__name__}"
            kernels.append((name, kernel))
            inexact = re.search(r"div\.(full|approx)|sqrt\.approx", kernel.asm["ptx"])
            assert not inexact, f"{self.__name__} has {inexact[0]}, which is not correctly rounded"
        needed = kernel.metadata.shared
        assert needed <= room, f"{self.__name__} needs {needed} bytes of shared memory, > {room}"

    JITFunction.run = compile_only
    before = driver._active if hasattr(driver, "_active") else None
    driver.set_active(_absent_gpu(capability))
    try:
        yield
    finally:
        JITFunction.run = run
        driver._active = before


def _absent_gpu(capability: int):
    """Return a Triton driver for a GPU that is not present."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver

    class AbsentGPU(CudaDriver):
        def __init__(self):
            pass  # the inherited constructor loads libcuda

        def get_current_target(self):
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self):
            return capability  # kernels are cached by device

        def get_current_stream(self, device):
            return 0

    return AbsentGPU()


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """Return calls that together launch every kernel in every way; each has a name."""
    for size, dtype, alpha in ROWS:
        for op, case in row_cases(size, dtype, alpha):
            yield f"{op} {size} {str(dtype)[6:]} {alpha}", case
    for queries, keys, head_dim, dtype, masks in HEADS:
        name = f"rela {queries}x{keys}x{head_dim} {str(dtype)[6:]} masks={masks}"
        yield name, rela_case(queries, keys, head_dim, dtype, masks)


def row_cases(size: int, dtype: torch.dtype, alpha: float):
    """Return calls of the ops on rows of logits."""
    from fairseq_sparse.ops.fenchel_young import RowLoss
    from fairseq_sparse.ops.gpu import rows

    z, target = torch.randn(3, size, dtype=dtype), torch.tensor([0, -100, size - 1])
    solution, each_alpha = torch.zeros(4, 3, dtype=torch.float64), torch.full((3, 1), alpha)
    smoothing = 0.1 * (size % 16 == 0)
    options = (alpha, smoothing, -100)
    yield "entmax", lambda: rows.entmax(z, None, alpha, "newton", 0, False)
    yield "entmax tensor", lambda: rows.entmax(z, each_alpha, 0.0, "newton", 0, True)
    yield "entmax_backward", lambda: rows.entmax_backward(z, z, alpha)
    yield (
        "row_loss_backward",
        lambda: rows.row_loss_backward(torch.ones(3), z, target, solution, *options),
    )
    for name, tau in (("entmax", None), ("alpha_relu", torch.tensor(0.3))):
        loss = RowLoss(alpha, tau, smoothing, -100)
        yield f"{name}_loss", lambda loss=loss: rows.residual_(z, target, loss, "newton", 0)
        yield f"{name}_loss", lambda tau=tau: rows.row_loss(z, target, tau, *options, "newton", 0)


def rela_case(queries: int, keys: int, head_dim: int, dtype: torch.dtype, masks: bool):
    """Return a call of rectified attention and of its gradient."""
    from fairseq_sparse.ops.gpu.rela_attention import attention, attention_backward

    def case():
        lengths = (queries, keys, keys)
        tensors = [torch.ones(1, 2, x, head_dim, dtype=dtype) for x in lengths]
        masked = torch.zeros(1, keys, dtype=torch.bool) if masks else None
        seed = torch.tensor(1 << 61) if masks else None
        options = (0.0, 0.125, masks, 0.1 * masks)
        context, solution = attention(*tensors, masked, None, seed, *options)
        attention_backward(context, *tensors, masked, None, seed, solution, *options)

    return case


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        main()

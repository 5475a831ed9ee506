"""Compiling Triton kernels to machine code for a GPU that need not be there.

Triton's interpreter takes programs that its compiler refuses. To run it in a process of its own,
where TRITON_INTERPRET is not set: ``run_compiled(__file__, "name of a function", ...)``.
"""

import os
import subprocess
from pathlib import Path

from fork_python import PYTHON

TESTS = Path(__file__).parents[1]


def run_compiled(path, function, cache, *arguments):
    """Call a function of a test file in a process where kernels are compiled, into ``cache``."""
    folders = (Path(path).parent, TESTS / "helpers", TESTS.parent, TESTS.parent / "scripts")
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    command = f"import {Path(path).stem} as tests; tests.{function}{arguments}"
    done = subprocess.run([PYTHON, "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def compile_kernel(kernel, types, constants, capability=90, warps=4):
    """Compile for a GPU of a compute capability such as 80 or 90.

    Args:
        types: the type of each argument that has a value when it runs, such as "i32" or "*bf16".
        constants: the values of all others.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name in types if types[name][0] == "*"}
    values = {places[name]: value for name, value in constants.items() if name in places}
    source = ASTSource(kernel, signature, constexprs=values, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": warps})

"""What computes an operator, how a user chooses it, and how that is reported."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from fairseq_sparse.ops import backends, entmax, entmax15, entmax_loss, linear_entmax_loss
from fairseq_sparse.ops.cpu import build
from fork_python import PYTHON

needs_kernels = pytest.mark.skipif(build.library() is None, reason="needs a C compiler")

# --- what a user chooses -------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize(
    "choice, name",
    [("auto", "cpu"), ("cpu", "cpu"), ("gpu", "reference"), ("reference", "reference")],
)
def test_a_choice_holds_in_its_context(choice, name):
    z = torch.randn(3, 40)
    expected = entmax15(z)
    with backends.use(choice):
        torch.testing.assert_close(entmax15(z), expected)
        assert backends.last_used()["entmax"] == name
    entmax15(z)
    assert backends.last_used()["entmax"] == "cpu"


@needs_kernels
def test_contexts_can_be_nested_and_end_with_an_error():
    z = torch.randn(3, 40)
    with pytest.raises(KeyError), backends.use("reference"):
        with backends.use("cpu"):
            entmax15(z)
            assert backends.last_used()["entmax"] == "cpu"
        entmax15(z)
        assert backends.last_used()["entmax"] == "reference"
        raise KeyError
    entmax15(z)
    assert backends.last_used()["entmax"] == "cpu"


@needs_kernels
def test_contexts_of_two_threads_may_overlap():
    first, second = backends.use("reference"), backends.use("cpu")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    entmax15(torch.randn(3, 40))
    assert backends.last_used()["entmax"] == "cpu"


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="auto, reference, cpu, gpu, got 'tpu'"):
        with backends.use("tpu"):
            pass
    entmax15(torch.zeros(2))  # the refused choice has no effect
    assert backends.last_used()["entmax"] == ("reference" if build.library() is None else "cpu")


def run(script, python=PYTHON, **environment):
    command = [python, "-c", script]
    return subprocess.run(command, env={**os.environ, **environment},
                          capture_output=True, text=True)  # fmt: skip


SCRIPT = """
import torch
from fairseq_sparse.ops import backends, entmax15
entmax15(torch.zeros(2))
print(backends.last_used())
"""


@pytest.mark.parametrize(
    "environment",
    [{"FAIRSEQ_SPARSE_BACKEND": "reference"}, {"FAIRSEQ_SPARSE_NATIVE": "0"}],
    ids=str,
)
def test_the_environment_chooses(environment):
    assert run(SCRIPT, **environment).stdout == "{'entmax': 'reference'}\n"


def test_a_choice_of_the_environment_is_checked():
    done = run(SCRIPT, FAIRSEQ_SPARSE_BACKEND="tpu")
    assert done.returncode != 0
    assert "FAIRSEQ_SPARSE_BACKEND: the backend must be one of" in done.stderr


# --- what is told --------------------------------------------------------------------------------


def test_each_backend_of_an_op_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(backends, "_logged", set())
    monkeypatch.setattr(backends, "_last", {})
    caplog.set_level(logging.DEBUG, "fairseq_sparse.ops.backends")
    for _ in range(2):
        with backends.use("reference"):
            entmax15(torch.randn(3, 4))
        entmax15(torch.randn(3, 4))
    expected = ["entmax: computed by reference"]
    if build.library() is not None:
        expected.append("entmax: computed by cpu")
    assert caplog.messages == expected


def test_a_loss_tells_what_computed_it():
    z, target = torch.randn(3, 40, dtype=torch.float64, requires_grad=True), torch.zeros(3).long()
    entmax_loss(z, target).backward()
    used = backends.last_used()
    assert used["row_loss"] == used["row_loss_backward"] == "reference"
    entmax(z.float(), 3.0)  # out of the kernels' range
    assert backends.last_used()["entmax"] == "reference"


# --- the reference --------------------------------------------------------------------------------


def test_the_reference_decides_nothing():
    """It imports neither the kernels nor the public functions."""
    script = """
import sys, types
for name in ("cpu", "gpu", "mappings", "losses", "attention"):
    sys.modules["fairseq_sparse.ops." + name] = None
package = types.ModuleType("fairseq_sparse.ops")
import fairseq_sparse
package.__path__ = [fairseq_sparse.__path__[0] + "/ops"]
sys.modules["fairseq_sparse.ops"] = package
import fairseq_sparse.ops.reference.linear_loss
"""
    done = run(script, python=sys.executable)  # without fairseq
    assert done.returncode == 0, done.stderr


def frames_to_kernel(function, name):
    """Return how many Python frames a call needs to reach the kernel of this name, included."""
    depths = []

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_name == name and str(build.FOLDER) in code.co_filename:
            depth = 0
            while frame.f_code is not function.__code__:
                depth, frame = depth + 1, frame.f_back
            depths.append(depth)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return max(depths)


@needs_kernels
def test_the_way_from_a_function_to_its_kernel_is_short():
    z, target = torch.randn(3, 40, requires_grad=True), torch.zeros(3).long()
    weight = torch.randn(90, 40)
    for function, name in (
        (lambda: entmax15(z), "entmax"),
        (lambda: entmax_loss(z, target), "row_loss"),
        (lambda: linear_entmax_loss(z, weight, None, target), "linear_loss"),
    ):
        assert frames_to_kernel(function, name) <= 8

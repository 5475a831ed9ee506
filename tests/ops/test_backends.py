"""Which backend is chosen, how a user chooses one, and how the choice is reported."""

import importlib
import logging
import subprocess
import sys
import types

import pytest
import torch

from fairseq_sparse.ops import backends, entmax, entmax15, entmax_loss, reference
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fork_python import PYTHON

needs_kernels = pytest.mark.skipif(build.library() is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def forget_what_was_found():
    backends.has_triton.cache_clear()
    backends.runs_kernels.cache_clear()
    yield
    backends.has_triton.cache_clear()
    backends.runs_kernels.cache_clear()


def set_version(monkeypatch, version):
    module = None if version is None else types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "triton", module)  # None: importing it raises


@pytest.mark.parametrize("version", ["3.0.0", "3.12.1+git123", "4.0"])
def test_new_versions_will_do(monkeypatch, caplog, version):
    set_version(monkeypatch, version)
    assert backends.has_triton()
    assert not caplog.records


@pytest.mark.parametrize("version", [None, "2.2.0"])
def test_what_is_missing_is_said_once(monkeypatch, caplog, version):
    set_version(monkeypatch, version)
    for _ in range(3):
        assert not backends.has_triton()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pip install 'triton>=3.0'" in record.getMessage()


def test_a_variable_turns_kernels_off(monkeypatch):
    set_version(monkeypatch, "3.1.0")
    monkeypatch.setenv("FAIRSEQ_SPARSE_TRITON", "0")
    assert not backends.has_triton()


def test_never_on_a_cpu(monkeypatch):
    set_version(monkeypatch, "3.1.0")
    for op in backends._ON_GPU:
        with backends.use("gpu"):
            assert backends.choose(op, (torch.zeros(3),)) is reference


# The GPUs on which no kernel runs: a V100, a T4, and AMD's, whose capability looks like NVIDIA's.
OTHER_GPUS = {"V100": ((7, 0), None), "T4": ((7, 5), None), "MI300": ((9, 4), "6.2")}


def pretend(monkeypatch, capability, hip):
    """Treat every tensor as on a GPU of this capability, under this version of ROCm."""
    monkeypatch.setattr(backends, "_device_of", lambda tensors: "gpu")
    monkeypatch.setattr(backends, "_gpu", lambda: types.SimpleNamespace(NAME="gpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    for op in backends._ON_GPU:
        monkeypatch.setitem(backends._ON_GPU, op, lambda tensors: True)
    set_version(monkeypatch, "9.0")


@pytest.mark.parametrize("gpu", OTHER_GPUS)
def test_no_kernel_runs_on_a_gpu_that_it_is_not_made_for(monkeypatch, caplog, gpu):
    caplog.set_level(logging.INFO, "fairseq_sparse.ops.backends")
    pretend(monkeypatch, *OTHER_GPUS[gpu])
    for op in [*backends._ON_GPU] * 2:
        assert backends.choose(op, (None, torch.zeros(3))) is reference
    (message,) = caplog.messages
    assert "ROCm" in message if gpu == "MI300" else "capability 7." in message
    assert "need an NVIDIA GPU of 8.0 or more" in message


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (12, 0)], ids=str)
def test_kernels_run_on_newer_gpus(monkeypatch, capability):
    pretend(monkeypatch, capability, None)
    for op in backends._ON_GPU:
        assert backends.choose(op, (None, torch.zeros(3))).NAME == "gpu"


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_kernels_of_a_gpu_compute_the_linear_losses_with_any_reduction(reduction):
    tensors = torch.randn(4, 8), torch.randn(9, 8), None, torch.zeros(4, dtype=torch.long)
    loss = FenchelYoungLoss(1.5, None, 0.0, -100, reduction)
    assert backends._ON_GPU["linear_losses"](tensors, loss, None)


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
    return subprocess.run(command, env={**backends.os.environ, **environment},
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
    assert used["row_losses"] == used["entmax"] == "reference"
    entmax(z.float(), 3.0)  # out of the kernels' range
    assert backends.last_used()["entmax"] == "reference"


# --- the backends --------------------------------------------------------------------------------

# The functions of an op, where they do not have its name.
FUNCTIONS = {
    "entmax": ("entmax_rows", "entmax_probabilities"),
    "alpha_relu": ("alpha_relu_weights",),
    "attention": ("attend",),
    "dropout": (),  # no function of a backend has the same arguments
}


@pytest.mark.parametrize("name, rules", [("cpu", backends._ON_CPU), ("gpu", backends._ON_GPU)])
def test_a_backend_has_the_functions_of_its_ops(name, rules):
    if name == "gpu":
        pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")
    module = importlib.import_module(f"fairseq_sparse.ops.{name}")
    for op in rules:
        for function in FUNCTIONS.get(op, (op,)):
            assert callable(getattr(module, function))


def test_the_reference_decides_nothing():
    """It imports neither the kernels nor the modules that choose between them."""
    script = """
import sys, types
for name in ("backends", "cpu", "gpu", "mappings"):
    sys.modules["fairseq_sparse.ops." + name] = None
package = types.ModuleType("fairseq_sparse.ops")
import fairseq_sparse
package.__path__ = [fairseq_sparse.__path__[0] + "/ops"]
sys.modules["fairseq_sparse.ops"] = package
import fairseq_sparse.ops.reference
"""
    done = run(script, python=sys.executable)  # without fairseq
    assert done.returncode == 0, done.stderr

"""Which GPUs the kernels run on, and that nothing else needs Triton."""

import logging
import subprocess
import sys
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_sparse.ops import gpu
from fairseq_sparse.ops.gpu import availability

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def forget_what_was_found():
    for function in (availability.has_triton, availability.has_kernels):
        function.cache_clear()
    yield
    for function in (availability.has_triton, availability.has_kernels):
        function.cache_clear()


def set_gpu(monkeypatch, capability, hip=None, triton=True):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    # None: importing it raises
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace() if triton else None)


def test_new_gpus_have_kernels(monkeypatch, caplog):
    set_gpu(monkeypatch, (8, 0))
    assert availability.has_kernels(GPU)
    assert not caplog.records


def test_what_is_missing_is_said_once(monkeypatch, caplog):
    set_gpu(monkeypatch, (9, 0), triton=False)
    for _ in range(3):
        assert not availability.has_kernels(GPU)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("capability, hip", [((7, 5), None), ((9, 4), "6.2")])
def test_other_gpus_have_no_kernels(monkeypatch, capability, hip):
    set_gpu(monkeypatch, capability, hip)
    assert not availability.has_kernels(GPU)


def test_a_variable_turns_kernels_off(monkeypatch):
    set_gpu(monkeypatch, (8, 0))
    monkeypatch.setenv("FAIRSEQ_SPARSE_TRITON", "0")
    assert not availability.has_kernels(GPU)


def test_kernels_get_real_tensors_of_one_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "has_kernels", lambda device: device.type == "meta")
    fitting = types.SimpleNamespace(fits_row_loss=lambda *args: True)
    monkeypatch.setattr(gpu, "import_module", lambda name: fitting)
    z, target, tau = torch.zeros(3, 4, device="meta"), torch.zeros(3), torch.tensor(0.3)
    assert gpu.fits("row_loss", z, target.to("meta"), tau, 1.5)
    assert not gpu.fits("row_loss", z, target, tau, 1.5)
    assert not gpu.fits("row_loss", torch.zeros(3, 4), target, tau, 1.5)
    with FakeTensorMode():
        assert not gpu.fits("row_loss", torch.zeros(3, 4, device="meta"), tau)


def test_importing_the_package_imports_no_triton():
    script = "import sys, fairseq_sparse.ops; assert 'triton' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

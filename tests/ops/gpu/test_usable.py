"""Whether kernels are used: never on a CPU, nor where triton is missing, old or turned off."""

import logging
import sys
import types

import pytest
import torch

from fairseq_sparse.ops import gpu as kernels


@pytest.fixture(autouse=True)
def forget_what_was_found():
    kernels._has_triton.cache_clear()
    yield
    kernels._has_triton.cache_clear()


def set_version(monkeypatch, version):
    module = None if version is None else types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "triton", module)  # None: importing it raises


@pytest.mark.parametrize("version", ["3.0.0", "3.12.1+git123", "4.0"])
def test_new_versions_will_do(monkeypatch, caplog, version):
    set_version(monkeypatch, version)
    assert kernels._has_triton()
    assert not caplog.records


@pytest.mark.parametrize("version", [None, "2.2.0"])
def test_what_is_missing_is_said_once(monkeypatch, caplog, version):
    set_version(monkeypatch, version)
    for _ in range(3):
        assert not kernels._has_triton()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pip install 'triton>=3.0'" in record.getMessage()


def test_a_variable_turns_kernels_off(monkeypatch):
    set_version(monkeypatch, "3.0.0")
    monkeypatch.setenv("FAIRSEQ_SPARSE_TRITON", "0")
    assert not kernels._has_triton()


def test_never_on_a_cpu(monkeypatch):
    set_version(monkeypatch, "3.0.0")
    assert not kernels.usable(torch.zeros(3))

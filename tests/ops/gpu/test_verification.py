"""No kernel decides a result before it was compared with the reference.

Without a GPU the kernels run in Triton's interpreter, on tensors of the CPU.
"""

import json
import logging
import threading

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import triton
import triton.language as tl

from fairseq_sparse.ops import entmax
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.gpu import comparisons, rows, verification
from fairseq_sparse.ops.gpu.verification import verified
from numerics.interpreted_gpu import InterpretedGPU

pytestmark = pytest.mark.pairwise
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
LOGGER = verification.logger.name
NEWTON = ("newton", 0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache folder without verdicts, and a process that knows none."""
    build.library()  # not compiled again into that folder
    monkeypatch.setattr(verification, "_environment", lambda device: "a GPU")
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Forget the verdicts of this process, as another process would not know them."""
    verification._verdicts.clear()


def pair(error=0.0):
    """Return a comparison that finds this error, and the list of its calls."""
    calls = []

    def compare():
        calls.append(1)
        yield "p", torch.tensor([1.0 + error]), torch.tensor([1.0], dtype=torch.float64)

    return compare, calls


def warnings(caplog):
    return [x.getMessage() for x in caplog.records if x.levelno >= logging.WARNING]


@triton.jit
def _wrong_power(p, rate, ALPHA: tl.constexpr):
    return p * 1.001


def test_a_planted_error_hands_over_to_the_reference(monkeypatch, caplog, folder):
    """The error is in a device function of the real kernel of the gradient."""
    z = torch.randn(4, 20, device=DEVICE, dtype=torch.float32, requires_grad=True)

    def gradient():
        return torch.autograd.grad((entmax(z, 1.3) * z.detach()).sum(), z)[0]

    right = gradient()
    with monkeypatch.context() as patch:
        patch.setattr(rows, "power_of_p", _wrong_power)
        wrong = rows.entmax_backward(entmax(z, 1.3).detach(), z.detach(), 1.3)
        assert (wrong - right).abs().max() > 1e-4
        for _ in range(2):
            with InterpretedGPU() as mode:
                found = gradient()
            assert mode.used == {"entmax"}  # which has no error
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
        (warning,) = warnings(caplog)
        assert "entmax_backward" in warning and str(folder) in warning
    # Another process believes the verdict that was kept.
    forget()
    assert not rows.fits_entmax_backward(z, z, 1.3)
    assert len(warnings(caplog)) == 2
    for path in folder.glob("gpu-*.json"):
        path.unlink()
    forget()
    assert rows.fits_entmax_backward(z, z, 1.3)


def test_a_right_kernel_is_compared_once(caplog, folder):
    compare, calls = pair(1e-6)
    for _ in range(2):
        assert verified("right", DEVICE, (1,), compare)
        assert verified("right", DEVICE, (1,), compare)
        forget()
    assert len(calls) == 1 and not warnings(caplog)
    assert verified("right", DEVICE, (2,), compare)  # of another form
    assert len(calls) == 2
    assert [json.loads(x.read_text())["problem"] for x in folder.iterdir()] == ["", ""]


@pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
def test_what_is_wrong(error, caplog):
    compare, _ = pair(error)
    assert not verified("wrong", DEVICE, (), compare)
    assert len(warnings(caplog)) == 1
    assert verification.rejected() == ["wrong ()"]


def test_a_kernel_that_fails(caplog):
    def compare():
        raise RuntimeError("PassManager::run failed")

    assert not verified("failing", DEVICE, (), compare)
    (warning,) = warnings(caplog)
    assert "PassManager::run failed" in warning
    assert not verified("failing", DEVICE, (), compare)
    assert len(warnings(caplog)) == 1


def test_memory_that_is_used_up_is_no_verdict(folder):
    def compare():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert not verified("right", DEVICE, (), compare)
    compare, calls = pair()
    assert verified("right", DEVICE, (), compare) and calls


def test_another_gpu_or_version_is_another_verdict(monkeypatch, folder):
    compare, calls = pair()
    for environment in ("a GPU", "another GPU", ""):
        monkeypatch.setattr(verification, "_environment", lambda device, e=environment: e)
        forget()
        assert verified("right", DEVICE, (), compare)
    assert len(calls) == 3 and len(list(folder.iterdir())) == 2  # not of the interpreter


def test_what_a_verdict_depends_on(monkeypatch):
    monkeypatch.undo()
    device, name = torch.device("cuda", 0), "NVIDIA A100"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = verification._environment.__wrapped__(device)
    assert name in found and torch.__version__ in found and triton.__version__ in found
    assert verification._environment.__wrapped__(torch.device("cpu")) == ""


def test_while_a_graph_is_captured_the_reference_computes(monkeypatch):
    compare, calls = pair()
    device = torch.device("cuda", 0)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not verified("right", device, (), compare) and not calls
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(verification, "_problem", lambda device, compare: "")
    assert verified("right", device, (), compare)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert verified("right", device, (), compare)  # known by now


def test_a_comparison_may_wait_for_the_gpu(monkeypatch):
    """Or the user who looks for such waits would be left without kernels."""
    mode = [2]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)
    assert verified("right", torch.device("cuda", 0), (), pair()[0])
    assert mode == [2, "default", 2]


def test_a_comparison_may_come_back_and_blocks_no_thread():
    """Gradients are computed in other threads; a reference may call an operator."""
    inside = []

    def compare():
        inside.append(verified("right", DEVICE, (), compare))
        other = threading.Thread(
            target=lambda: inside.append(verified("right", DEVICE, (), compare))
        )
        other.start()
        other.join(timeout=30)
        yield "p", torch.ones(1), torch.ones(1)

    assert verified("right", DEVICE, (), compare)
    assert inside == [False, False]


def test_a_folder_that_others_can_write_to_is_not_believed(folder):
    compare, calls = pair(1e-3)
    assert not verified("wrong", DEVICE, (), compare)
    forget()
    (path,) = folder.iterdir()
    path.write_text(json.dumps({"problem": ""}))
    assert verified("wrong", DEVICE, (), compare)  # a file of our own
    folder.chmod(0o777)
    for _ in range(2):
        forget()
        assert not verified("wrong", DEVICE, (), compare)
    assert len(calls) == 3
    folder.chmod(0o700)
    path.chmod(0o666)
    forget()
    assert not verified("wrong", DEVICE, (), compare)


def test_a_damaged_verdict_is_replaced(folder):
    compare, calls = pair()
    assert verified("right", DEVICE, (), compare)
    (path,) = folder.iterdir()
    for damage in ("", "[]", '{"problem": '):
        path.write_text(damage)
        forget()
        assert verified("right", DEVICE, (), compare)
    assert len(calls) == 4


def test_a_comparison_leaves_the_state_of_pytorch_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    z = torch.randn(0, 40, device=DEVICE)
    with torch.device("meta"), torch.autocast(DEVICE.type, torch.bfloat16):
        assert rows.fits_row_loss(
            torch.zeros(2, 40, device=DEVICE), None, None, 1.5, 0.1, 0, *NEWTON
        )
    assert z.numel() == 0 and torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 7, 48])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_every_row_kernel_passes(alpha, size, dtype, caplog):
    z, grad = torch.zeros(2, size, device=DEVICE, dtype=dtype), torch.zeros(2, device=DEVICE)
    row_alpha, tau = torch.full((2, 1), alpha, device=DEVICE), torch.tensor(0.3)
    assert rows.fits_entmax(z, None, alpha, *NEWTON, False)
    assert rows.fits_entmax(z, row_alpha, 0.0, *NEWTON, False)
    assert rows.fits_entmax_backward(z, z, alpha)
    for smoothing in (0.0, 0.1):
        options = (alpha, smoothing, -100)
        assert rows.fits_row_loss_backward(grad, z, None, None, *options)
        for each in (None, tau):
            assert rows.fits_row_loss(z, None, each, *options, *NEWTON)
            assert rows.fits_linear_loss(z, z, None, None, each, *options, *NEWTON)
    assert not warnings(caplog)


def test_samples_reach_every_part_of_a_kernel():
    """Of a row of several blocks, in registers some samples are solved, others in memory."""
    size = 5000
    block = rows.row_options(size)["BLOCK"]
    z = comparisons.logits(size, torch.float32, DEVICE)
    lanes = torch.nn.functional.pad(z, (0, -size % block), value=-torch.inf).view(12, -1, block)
    third = lanes.sort(1, descending=True).values[:, 2].amax(-1)
    p, tau = rows.entmax(z, None, 1.5, *NEWTON, False)
    sweeps = (0.5 * third > tau) & ~tau.isnan()
    assert 0 < sweeps.sum() < 10
    assert ((p > 0).sum(-1) == 1).any() and ((p > 0).sum(-1) == size).any()

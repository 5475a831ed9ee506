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
from fairseq_sparse.ops.operators import reference_of
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


def planted(error=0.0):
    """Return a kernel that is off by this error, and the list of its calls."""
    calls = []

    def entmax_backward(*args):
        calls.append(1)
        return reference_of(torch.ops.fairseq_sparse.entmax_backward.default)(*args) + error

    return entmax_backward, calls


def verified(kernel, *form, device=DEVICE):
    return verification.verified(kernel, device, torch.float32, form, (7, 1.5))


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
    kernel, calls = planted(1e-6)
    for _ in range(2):
        assert verified(kernel) and verified(kernel)
        forget()
    assert len(calls) == 1 and not warnings(caplog)
    assert verified(kernel, 2)  # of another form
    assert len(calls) == 2
    assert [json.loads(x.read_text())["problem"] for x in folder.iterdir()] == ["", ""]


@pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
def test_what_is_wrong(error, caplog):
    kernel, _ = planted(error)
    assert not verified(kernel, 1) and not verified(kernel, 1)
    assert len(warnings(caplog)) == 1
    (text,) = verification.rejected()
    assert "entmax_backward" in text


def test_a_kernel_that_fails(caplog):
    def entmax_backward(*args):
        raise RuntimeError("PassManager::run failed")

    assert not verified(entmax_backward) and not verified(entmax_backward)
    (warning,) = warnings(caplog)
    assert "PassManager::run failed" in warning


def test_memory_that_is_used_up_is_no_verdict(folder):
    def entmax_backward(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert not verified(entmax_backward)
    kernel, calls = planted()
    assert verified(kernel) and calls


def test_other_threads_wait_for_the_verdict():
    others, calls = [], []
    kernel, _ = planted()

    def entmax_backward(*args):
        calls.append(1)
        if len(calls) == 1:
            others.append(threading.Thread(target=lambda: calls.append(verified(entmax_backward))))
            others[0].start()
            others[0].join(timeout=0.1)
        return kernel(*args)

    assert verified(entmax_backward)
    others[0].join(timeout=30)
    assert calls == [1, True]


def test_another_gpu_or_version_is_another_verdict(monkeypatch, folder):
    kernel, calls = planted()
    for environment in ("a GPU", "another GPU", ""):
        monkeypatch.setattr(verification, "_environment", lambda device, e=environment: e)
        forget()
        assert verified(kernel)
    assert len(calls) == 3 and len(list(folder.iterdir())) == 2  # not of the interpreter


def test_what_a_verdict_depends_on(monkeypatch):
    monkeypatch.undo()
    device, name = torch.device("cuda", 0), "NVIDIA A100"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = verification._environment.__wrapped__(device)
    assert name in found and torch.__version__ in found and triton.__version__ in found
    assert verification._environment.__wrapped__(torch.device("cpu")) == ""


def test_while_a_graph_is_captured_the_reference_computes(monkeypatch):
    kernel, calls = planted()
    device = torch.device("cuda", 0)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not verified(kernel, device=device) and not calls
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(verification, "_problem", lambda *args: "")
    assert verified(kernel, device=device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert verified(kernel, device=device)  # known by now


def test_a_comparison_may_wait_for_the_gpu(monkeypatch):
    """Or the user who looks for such waits would be left without kernels."""
    mode = [2]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)
    verified(planted()[0], device=torch.device("cuda", 0))
    assert mode == [2, "default", 2]


def test_a_folder_that_others_can_write_to_is_not_believed(folder):
    kernel, calls = planted(1e-3)
    assert not verified(kernel)
    forget()
    (path,) = folder.iterdir()
    path.write_text(json.dumps({"problem": ""}))
    assert verified(kernel)  # a file of our own
    folder.chmod(0o777)
    for _ in range(2):
        forget()
        assert not verified(kernel)
    assert len(calls) == 3
    folder.chmod(0o700)
    path.chmod(0o666)
    forget()
    assert not verified(kernel)


@pytest.mark.parametrize("blocked", ["folder", "file"])
def test_where_nothing_can_be_kept_each_process_compares(blocked, folder, monkeypatch):
    def raise_full(*args):
        raise OSError("no space left on device")

    if blocked == "folder":
        folder.write_text("a file in its place")
    else:
        monkeypatch.setattr(verification, "write_json", raise_full)
    kernel, calls = planted()
    for _ in range(2):
        forget()
        assert verified(kernel)
    assert len(calls) == 2


def test_a_damaged_verdict_is_replaced(folder):
    kernel, calls = planted()
    assert verified(kernel)
    (path,) = folder.iterdir()
    for damage in ("", "[]", '{"problem": '):
        path.write_text(damage)
        forget()
        assert verified(kernel)
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
    z = comparisons.logits(size).to(DEVICE)
    lanes = torch.nn.functional.pad(z, (0, -size % block), value=-torch.inf).view(12, -1, block)
    third = lanes.sort(1, descending=True).values[:, 2].amax(-1)
    p, tau = rows.entmax(z, None, 1.5, *NEWTON, False)
    sweeps = (0.5 * third > tau) & ~tau.isnan()
    assert 0 < sweeps.sum() < 10
    assert ((p > 0).sum(-1) == 1).any() and ((p > 0).sum(-1) == size).any()

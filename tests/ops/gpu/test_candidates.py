"""Lists of candidates: they hold the support, little else, and are in range.

Without a GPU the kernels run in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

from fairseq_sparse.ops import alpha_relu, entmax
from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu import candidates
from fairseq_sparse.ops.gpu.candidates import find_candidates

pytestmark = pytest.mark.each_value
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WIDTH, IGNORED = 20, 24, 5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    sizes = {
        "_TILE_ROWS": 16,
        "_TILE_CLASSES": 16,
        "_TILE_BYTES": 64,
        "_PROGRAMS": 6,
        "_PLACES": 10.0,
    }
    for name, size in sizes.items():
        monkeypatch.setattr(candidates, name, size)


def lists(found, row, classes):
    """Return the logits in the lists of a row, by class."""
    columns, scores = [], []
    for part, count in enumerate(found.counts[row].tolist()):
        taken = slice(part * found.length, part * found.length + count)
        columns += found.columns[row, taken].tolist()
        scores += found.scores[row, taken].tolist()
    assert len(set(columns)) == len(columns) and all(0 <= c < classes for c in columns)
    return dict(zip(columns, scores, strict=True))


def drawn(classes, scale):
    x, weight = torch.randn(ROWS, WIDTH), scale * torch.randn(classes, WIDTH) / WIDTH**0.5
    target = torch.randint(classes, (ROWS,))
    target[3] = IGNORED
    return x.to(DEVICE), weight.to(DEVICE), target.to(DEVICE)


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 2.5])
def test_the_support_of_entmax_is_listed(alpha, scale):
    x, weight, target = drawn(150, scale)
    found = find_candidates(
        x, weight, None, target, FenchelYoungLoss(alpha, None, 0.1, IGNORED, "")
    )
    logits = x @ weight.t()
    support = entmax(logits.double(), alpha) > 0
    for row in range(ROWS):
        if row == 3:
            assert found.counts[row].sum() == 0
            continue
        listed = lists(found, row, 150)
        assert set(support[row].nonzero().flatten().tolist()) <= set(listed)
        for column, score in listed.items():
            assert score == pytest.approx(float(logits[row, column]), abs=1e-5)
        assert len(listed) == found.scores[row].isfinite().sum()
    counted = target != IGNORED
    gold = logits.gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found.gold[counted], gold[counted])
    torch.testing.assert_close(found.sums.sum(1), logits.sum(1), rtol=1e-4, atol=1e-4)


def test_newton_steps_spare_candidates(monkeypatch):
    """In an untrained layer far more logits than the support lie within reach of the largest."""
    monkeypatch.setattr(candidates, "_PROGRAMS", 1)
    x, weight, target = drawn(800, 1.0)
    found = find_candidates(x, weight, None, target, FenchelYoungLoss(1.5, None, 0.0, -1, ""))
    logits = x @ weight.t()
    largest = logits.unflatten(1, (50, 16)).amax(2).cummax(1).values  # up to the end of each tile
    in_reach = (logits > largest.repeat_interleave(16, 1) - 2).sum()
    support = (entmax(logits.double(), 1.5) > 0).sum()
    assert found.counts.shape == (ROWS, 1) and (found.counts <= found.length).all()
    assert support < found.counts.sum() < 0.6 * in_reach


def test_alpha_relu_lists_exactly_its_support():
    x, weight, target = drawn(150, 1.0)
    tau = torch.tensor(0.6, device=DEVICE)
    found = find_candidates(x, weight, None, target, FenchelYoungLoss(1.5, tau, 0.0, -1, ""))
    support = alpha_relu((x @ weight.t()).double(), 0.6) > 0
    for row in range(ROWS):
        assert set(lists(found, row, 150)) == set(support[row].nonzero().flatten().tolist())


def test_a_list_that_is_full_says_so(monkeypatch):
    monkeypatch.setattr(candidates, "_PLACES", 2 / 64**0.5)
    x, weight, target = drawn(150, 1.0)
    found = find_candidates(x, weight, None, target, FenchelYoungLoss(1.5, 0.6, 0.0, -1, ""))
    support = alpha_relu((x @ weight.t()).double(), 0.6) > 0
    share = -(-150 // found.counts.size(1) // 16) * 16
    for part in range(found.counts.size(1)):
        expected = support[:, part * share : (part + 1) * share].sum(1)
        assert torch.equal(found.counts[:, part].clamp(max=3).cpu(), expected.clamp(max=3).cpu())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("tau", [None, 0.6])
def test_a_broken_row_has_no_complete_list(tau, value):
    x, weight, target = drawn(150, 1.0)
    x[4, 1] = value
    loss = FenchelYoungLoss(1.5, tau, 0.0, -1, "")
    found = find_candidates(x, weight, None, target, loss)
    incomplete = (found.counts > found.length).any(1)
    assert incomplete.nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_the_precision_of_products_is_that_of_pytorch(precision):
    settings = torch.backends.cuda.matmul
    # Once the newer setting is changed, the older one cannot be read.
    name = "fp32_precision" if hasattr(settings, "fp32_precision") else "allow_tf32"
    before = getattr(settings, name)
    setattr(settings, name, precision if name == "fp32_precision" else precision == "tf32")
    try:
        assert candidates.is_exact(torch.zeros(1)) == (precision == "ieee")
        assert candidates.is_exact(torch.zeros(1, dtype=torch.float64))
        assert not candidates.is_exact(torch.zeros(1, dtype=torch.bfloat16))
    finally:
        setattr(settings, name, before)

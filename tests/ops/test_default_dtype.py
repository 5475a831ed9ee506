"""The ops do not depend on PyTorch's default dtype and device."""

from contextlib import contextmanager

import pytest
import torch

from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    attend,
    backends,
    entmax,
    entmax_loss,
    gated_rms_norm,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    rms_norm,
)
from fairseq_sparse.ops.dropout import dropout
from op_cases import attend_by_kernels_at_any_size, sparse_attention

SIZES = {"rows": 300, "vocabulary": 700, "width": 32}


def numbers(*shape, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")


def target():
    generator = torch.Generator("cpu").manual_seed(9)
    return torch.randint(SIZES["vocabulary"], (SIZES["rows"],), generator=generator, device="cpu")


def on_logits(op):
    return lambda: (op, [numbers(SIZES["rows"], SIZES["vocabulary"])])


def on_features(op):
    x = numbers(SIZES["rows"], SIZES["width"])
    return lambda: (op, [x, numbers(SIZES["vocabulary"], SIZES["width"], seed=1)])


def on_heads(op):
    return lambda: (op, [numbers(2, 3, 30, 16, seed=seed) for seed in range(3)])


def masks():
    masked = torch.zeros(2, 30, dtype=torch.bool, device="cpu")
    masked[:, 25:] = True
    return masked, torch.full((30, 30), -1e8, dtype=torch.float32, device="cpu").triu(1)


def vector(seed):
    return numbers(SIZES["vocabulary"], seed=seed)


CASES = {
    "entmax": on_logits(lambda z: entmax(z, 1.5)),
    "entmax of columns": on_logits(lambda z: entmax(z, 1.3, 0)),
    "entmax of tensors": on_logits(lambda z: entmax(z, z.new_full((len(z), 1), 1.3))),
    "alpha_relu": on_logits(lambda z: alpha_relu(z, 1.0)),
    "entmax_loss": on_logits(lambda z: entmax_loss(z, target())),
    "entmax_loss smoothed": on_logits(lambda z: entmax_loss(z, target(), label_smoothing=0.1)),
    "entmax_loss partial": on_logits(lambda z: entmax_loss(z, target(), algorithm="partial")),
    "alpha_relu_loss": on_logits(lambda z: alpha_relu_loss(z, target(), 1.0)),
    "linear_entmax_loss": on_features(lambda x, w: linear_entmax_loss(x, w, None, target())),
    "linear, with a bias": on_features(
        lambda x, w: linear_entmax_loss(x, w, vector(5), target(), label_smoothing=0.1)
    ),
    "linear_alpha_relu_loss": on_features(
        lambda x, w: linear_alpha_relu_loss(x, w, None, target(), 1.0)
    ),
    "rms_norm": on_logits(lambda z: rms_norm(z, vector(3))),
    "gated_rms_norm": on_logits(lambda z: gated_rms_norm(z, vector(3), vector(4))),
    "dropout": on_logits(lambda z: dropout(z, 0.4)),
    "attend": on_heads(lambda q, k, v: attend(q, k, v, "relu", masked=masks()[0])[0]),
    "attend causal": on_heads(lambda q, k, v: attend(q, k, v, "entmax15", causal=True)[0]),
    "attend long": on_heads(
        lambda q, k, v: attend(*(x.repeat(1, 1, 40, 1) for x in (q, k, v)), "softmax")[0]
    ),
    "rectified attention": on_heads(lambda q, k, v: sparse_attention(q, k, v, 0.0)),
    "entmax attention": on_heads(
        lambda q, k, v: sparse_attention(q, k, v, 1.5, 0.3, *masks(), dropout=0.2)
    ),
}


def value_and_gradients(case, view=lambda x: x):
    """Return the value and the gradients of a case whose tensors are all given as ``view``."""
    op, inputs = case()
    inputs = [x.requires_grad_() for x in inputs]
    torch.manual_seed(5)
    value = op(*map(view, inputs))
    grad = torch.linspace(-1, 1, value.numel(), dtype=torch.float32, device="cpu")
    grad = view(grad.view(value.shape)) if value.dim() else grad[0]
    return value.detach(), *torch.autograd.grad(value, inputs, grad)


each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(params=["kernels", "pytorch"])
def backend(request, monkeypatch):
    attend_by_kernels_at_any_size(monkeypatch)
    if request.param == "pytorch":
        with backends.use("reference"):
            yield
    else:
        yield


@pytest.mark.each_value
@pytest.mark.usefixtures("backend")
@each_dtype
@pytest.mark.parametrize("name", CASES)
def test_any_default_dtype(name, dtype):
    expected = value_and_gradients(CASES[name])
    with default_dtype(dtype):
        found = value_and_gradients(CASES[name])
    for actual, right in zip(found, expected, strict=True):
        assert actual.dtype == torch.float32 and torch.equal(actual, right)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", CASES)
def test_any_default_device(name):
    expected = value_and_gradients(CASES[name])
    with torch.device("meta"):
        found = value_and_gradients(CASES[name])
    for actual, right in zip(found, expected, strict=True):
        assert actual.is_cpu and torch.equal(actual, right)


@each_dtype
@pytest.mark.parametrize("kind", ["rela_g", "entmax15"])
def test_a_step_of_generation_under_any_default_dtype(kind, dtype):
    attention = SparseMultiheadAttention(32, 2, self_attention=True, attention=kind).float().eval()
    x = numbers(5, 3, 32)
    with torch.no_grad(), default_dtype(dtype):
        whole, _ = attention(x, x, x, attn_mask=x.new_full((5, 5), -1e8).triu(1))
        state: dict = {}
        steps = [attention(y, y, y, incremental_state=state)[0] for y in x.split(1)]
    torch.testing.assert_close(torch.cat(steps), whole)


VIEWS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other": lambda x: torch.stack([x, x * 0], -1).flatten(-2)[..., ::2],
    "flipped": lambda x: x.flip(-1).flip(-1),
    "a part": lambda x: torch.cat([x, x], -1)[..., : x.size(-1)],
    "requires a copy": lambda x: x.expand(2, *x.shape).transpose(0, -1)[..., 0].movedim(0, -1),
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", [name for name in CASES if name != "dropout"])
def test_any_layout(name):
    """Values and gradients are the same in any memory layout, also of the incoming gradient."""
    expected = value_and_gradients(CASES[name])
    for layout, view in VIEWS.items():
        found = value_and_gradients(CASES[name], view)
        for actual, right in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, right, msg=lambda text, x=layout: f"{x}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_inference_mode(name):
    op, inputs = CASES[name]()
    torch.manual_seed(5)
    expected = op(*inputs)
    torch.manual_seed(5)
    with torch.inference_mode():
        assert torch.equal(op(*inputs), expected)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("rows", [0, 7])
def test_a_row_of_an_expanded_matrix(rows):
    """All rows are the same one in memory."""
    z, labels = numbers(1, 40).expand(rows, 40), torch.zeros(rows, dtype=torch.int64)
    for op in (
        lambda z: entmax(z, 1.5),
        lambda z: alpha_relu(z, 0.5),
        lambda z: entmax_loss(z, labels),
        lambda z: alpha_relu_loss(z, labels, 0.5),
    ):
        results = (value_and_gradients(lambda x=x, f=op: (f, [x])) for x in (z, z.contiguous()))
        assert all(map(torch.equal, *results))

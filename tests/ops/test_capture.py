"""The ops where PyTorch records, transforms or distributes tensors instead of computing.

Results are compared with those in eager mode, which the kernels compute.
"""

import os
import time
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    attend,
    backends,
    cpu,
    entmax,
    entmax15,
    entmax_loss,
    entmax_threshold,
    gated_rms_norm,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    log_alpha_relu,
    log_entmax,
    rms_norm,
    softmax,
    sparsemax,
)
from fairseq_sparse.ops.dropout import dropout
from fairseq_sparse.ops.reference.attention import attention
from op_cases import attend_by_kernels_at_any_size, attends_by_kernels

TARGET = torch.tensor([3, 1, 0, 299, -100, 7])
WEIGHT = torch.randn(300, 16, generator=torch.Generator().manual_seed(1))
VECTOR = torch.rand(300, generator=torch.Generator().manual_seed(2))
PADDING = torch.arange(36) > 29
ALPHAS, TAU = torch.tensor([[1.2], [1.5], [2], [1.1], [1.7], [1.9]]), torch.tensor(0.3)


def attention_by(weights, **options):
    """Return attention over ``[6, 300]``: 36 queries in 3 heads of 16, enough for the kernels."""

    def function(z):
        heads = z[:, :288].reshape(1, 3, 36, 16)
        masked = PADDING[None].to(z.device)
        values = heads * 0.05  # rectified weights are large
        return attend(heads, heads * 0.5, values, weights, masked=masked, causal=True, **options)[0]

    return function


def finite(logs):
    return logs.masked_fill(logs.isneginf(), 0.0)


# Ops on logits [6, 300].
OPS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax15 by sorting": partial(entmax15, algorithm="partial", topk=5),
    "entmax of columns": partial(entmax, alpha=1.3, dim=0),
    "entmax of a tensor": lambda z: entmax(z, ALPHAS.to(z.device)),
    "alpha_relu": lambda z: alpha_relu(z, 0.3),
    "alpha_relu of a tensor": lambda z: alpha_relu(z, TAU.to(z.device)),
    # -inf, which has no gradient to compare, is replaced by 0.
    "log_entmax": lambda z: finite(log_entmax(z, 1.5)),
    "log_alpha_relu": lambda z: finite(log_alpha_relu(z, TAU.to(z.device))),
    "entmax_loss": lambda z: entmax_loss(z, TARGET.to(z.device)),
    "entmax_loss smoothed": lambda z: entmax_loss(
        z, TARGET.to(z.device), 1.3, label_smoothing=0.1, reduction="none"
    ),
    "alpha_relu_loss": lambda z: alpha_relu_loss(z, TARGET.to(z.device), 0.3),
    "alpha_relu_loss of a tensor": lambda z: alpha_relu_loss(
        z, TARGET.to(z.device), TAU.to(z.device), label_smoothing=0.1
    ),
    "linear_entmax_loss": lambda z: linear_entmax_loss(
        z[:, :16], WEIGHT.to(z.device), None, TARGET.to(z.device), label_smoothing=0.1
    ),
    "linear_alpha_relu_loss": lambda z: linear_alpha_relu_loss(
        z[:, :16], WEIGHT.to(z.device), None, TARGET.to(z.device), 0.3
    ),
    "rms_norm": lambda z: rms_norm(z, VECTOR.to(z.device)),
    "gated_rms_norm": lambda z: gated_rms_norm(z, VECTOR.to(z.device), VECTOR.to(z.device)),
    "attention relu": attention_by("relu"),
    "attention entmax": attention_by("entmax", alpha=1.5),
}
each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
# What the compiler of torch 2.6 cannot trace; with 2.13 it can.
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
UNTRACED = ("alpha_relu_loss of a tensor", "attention entmax") if IS_OLD else ()


def logits(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * 1.5


def value_and_gradient(op, z):
    z = z.clone().requires_grad_()
    value = op(z)
    weights = torch.linspace(0.5, 1.5, value.numel()).view(value.shape)
    return value.detach(), *torch.autograd.grad((value * weights).sum(), z)


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["entmax of a tensor", "attention relu", "attention entmax"])
def test_what_is_compared_with_is_computed_by_kernels(name, monkeypatch):
    if not attends_by_kernels():
        pytest.skip("needs kernels for vectors of eight numbers")
    monkeypatch.setattr(backends, "_last", {})
    attend_by_kernels_at_any_size(monkeypatch)
    value_and_gradient(OPS[name], logits(6, 300))
    assert set(backends.last_used().values()) == {"cpu"}


@pytest.mark.parametrize("name", [name for name in OPS if name not in UNTRACED])
def test_compiles_as_one_graph_with_its_gradient(name):
    op = OPS[name]
    torch._dynamo.reset()
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    assert_same(
        value_and_gradient(compiled, logits(6, 300)), value_and_gradient(op, logits(6, 300))
    )


@pytest.mark.slow
@each_op
def test_compiles_to_code(op):
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True)
    assert_same(
        value_and_gradient(compiled, logits(6, 300)), value_and_gradient(op, logits(6, 300))
    )


@each_op
def test_fake_tensors_get_shapes(op):
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(logits(6, 300)).requires_grad_()
        value = op(fake)
        (gradient,) = torch.autograd.grad(value.sum(), fake)
    expected = op(logits(6, 300))
    assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
    assert gradient.shape == (6, 300)


@pytest.mark.parametrize("alpha", [1.5, 2.5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(6, 4), (0, 4), (6, 0)], ids=str)
def test_the_operators_keep_their_promises(alpha, dtype, shape):
    """Of the layout of their results, and that they share no memory."""
    rows = torch.randn(shape).to(dtype)
    target, tau = torch.zeros(shape[0]).long(), torch.tensor(0.3)
    weight, options = torch.randn(5, shape[1]).to(dtype), (0.1, -100, "newton", 0)
    for z in (rows, rows.t().contiguous().t()):
        calls = {
            "entmax": (z, None, alpha, "newton", 0, False),
            "entmax_backward": (z.softmax(-1), z, alpha),
            "alpha_relu": (z, tau, alpha, True),
        }
        if shape[1] > 0:
            calls["row_loss"] = (z, target, None, alpha, *options)
            calls["linear_loss"] = (
                *(z, weight, None, target % 5, tau, alpha),
                *(*options, True, True, False),
            )
            _, solution = torch.ops.fairseq_sparse.row_loss(*calls["row_loss"])
            calls["row_loss_backward"] = (
                *(torch.ones(shape[0]), z, target, solution, alpha),
                *options[:2],
            )
        for name, arguments in calls.items():
            operator = getattr(torch.ops.fairseq_sparse, name).default
            checks = ("test_schema", "test_faketensor")
            torch.library.opcheck(operator, arguments, test_utils=checks)


@pytest.mark.parametrize("choice", ["cpu", "reference"])
@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_the_operators_of_attention_keep_their_promises(alpha, choice, monkeypatch):
    attend_by_kernels_at_any_size(monkeypatch)
    query, key, value = (torch.randn(n, 2, 3, 16).permute(1, 2, 0, 3) for n in (5, 7, 7))
    seed = torch.tensor(3)
    masks = (torch.rand(2, 7) < 0.3, None, seed)
    options = (alpha, 0.3, True, 0.2)
    with backends.use(choice):
        solution = attention(query, key, value, *masks, *options)[1]
        grad = torch.randn(5, 2, 3, 16)
        calls = {
            "attention": (query, key, value, *masks, *options),
            "attention_backward": (grad, query, key, value, *masks, solution, *options),
            "attention_step": (query[:, :, :1], key, value, masks[0], alpha, 0.3, True),
            "dropout": (query, 0.4, seed),
        }
        for name, arguments in calls.items():
            operator = getattr(torch.ops.fairseq_sparse, name).default
            checks = ("test_schema", "test_faketensor")
            torch.library.opcheck(operator, arguments, test_utils=checks)


@pytest.mark.parametrize("name", ["entmax15", "alpha_relu", "entmax_loss", "attention entmax"])
@pytest.mark.skipif(IS_OLD, reason="torch 2.6 exports no function with global tensors")
def test_exports(name):
    class Module(torch.nn.Module):
        def forward(self, z):
            return OPS[name](z)

    exported = torch.export.export(Module(), (logits(6, 300),))
    other = logits(6, 300) * 0.7
    assert_same(exported.module()(other), OPS[name](other))


@each_op
def test_vmap_is_a_loop(op):
    batch = torch.stack([logits(6, 300), logits(6, 300) * 0.5])
    expected = torch.stack([op(z) for z in batch])
    assert_same(torch.func.vmap(op)(batch), expected)
    last = torch.func.vmap(op, in_dims=2)(batch.permute(1, 2, 0))
    assert_same(last, expected)


@each_op
def test_functional_gradients(op):
    batch = torch.stack([logits(6, 300), logits(6, 300) * 0.5])
    gradient = torch.func.grad(lambda z: op(z).square().sum())
    expected = [value_and_gradient(lambda z: op(z).square(), z)[1] * 0 for z in batch]
    for place, z in enumerate(batch):
        z = z.clone().requires_grad_()
        expected[place] = torch.autograd.grad(op(z).square().sum(), z)[0]
    assert_same(gradient(batch[0]), expected[0])
    assert_same(torch.func.vmap(gradient)(batch), torch.stack(expected))


@each_op
def test_ops_on_plain_tensors_within_vmap(op):
    z, factors = logits(6, 300), torch.tensor([0.5, 2.0])
    found = torch.func.vmap(lambda factor: op(z) * factor)(factors)
    assert_same(found, torch.stack([op(z) * factor for factor in factors]))


@pytest.mark.parametrize("weights", ["softmax", "entmax15", "relu"])
@pytest.mark.parametrize("queries", [5, 200])  # also in parts
def test_vmap_over_masks_alone(weights, queries):
    x = torch.randn(2, 2, queries, 16, generator=torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(5)
    for masks in (
        {"masked": torch.rand(3, 2, queries, generator=generator) < 0.3},
        {"bias": torch.randn(3, queries, queries, generator=generator)},
    ):
        ((name, batch),) = masks.items()

        def function(mask, name=name):
            return attend(x, x, x * 0.1, weights, **{name: mask})[0]

        assert_same(torch.func.vmap(function)(batch), torch.stack([*map(function, batch)]))


class Counting(TorchDispatchMode):
    """Any mode, such as one that counts operations."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


@each_op
def test_a_dispatch_mode_sees_operators(op):
    with Counting() as mode:
        value = op(logits(6, 300))
    assert mode.calls > 0
    assert_same(value, op(logits(6, 300)))


class Wrapped(torch.Tensor):
    """A subclass whose own data pointer does not lead to its data."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), dtype=inner.dtype
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrap(x):
            return x.inner if isinstance(x, Wrapped) else x

        def wrap(x):
            return cls(x) if isinstance(x, torch.Tensor) else x

        tree_map = torch.utils._pytree.tree_map
        found = function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(wrap, found)


@pytest.mark.parametrize("name", OPS)
def test_a_tensor_subclass_is_not_read_behind_its_back(name):
    with torch.no_grad():
        assert_same(OPS[name](Wrapped(logits(6, 300))).inner, OPS[name](logits(6, 300)))


def test_the_threshold_and_dropout_compile():
    def function(z):
        return entmax_threshold(z, 1.5), dropout(z, 0.5)

    torch._dynamo.reset()
    tau, dropped = torch.compile(function, fullgraph=True, backend="aot_eager")(logits(6, 300))
    assert_same(tau, entmax_threshold(logits(6, 300), 1.5))
    assert ((dropped == 0) | (dropped == 2 * logits(6, 300))).all() and 0 < (dropped == 0).sum()


def test_rows_without_entries_and_no_rows_are_captured():
    for shape in ((0, 5), (3, 0)):
        assert torch.func.vmap(entmax15)(torch.zeros(2, *shape)).shape == (2, *shape)


def test_a_tensor_whose_memory_has_the_other_sign():
    z = torch.randn(4, 9)
    conjugate = torch.complex(z, -z).conj().imag  # a view of -z, marked to be read as z
    assert conjugate.is_neg()
    assert torch.equal(entmax15(conjugate), entmax15(z))


@pytest.mark.parametrize("op", [attention_by("relu"), partial(dropout, p=0.5)])
def test_an_incoming_gradient_whose_memory_has_the_other_sign(op):
    z = logits(6, 300).requires_grad_()
    torch.manual_seed(1)
    out = op(z)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(6))
    expected = torch.autograd.grad(out, z, -grad, retain_graph=True)
    assert_same(torch.autograd.grad(out, z, torch._neg_view(grad)), expected)


def test_a_distributed_tensor_gives_what_its_parts_give(tmp_path):
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        for placement in (Replicate(), Shard(0), Shard(1)):
            z = distribute_tensor(logits(6, 300), mesh, [placement]).requires_grad_()
            p = entmax15(z)
            assert_same(p.full_tensor(), entmax15(logits(6, 300)))
            p.square().sum().backward()
            plain = logits(6, 300).requires_grad_()
            entmax15(plain).square().sum().backward()
            assert_same(z.grad.full_tensor(), plain.grad)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(cpu.build.library() is None, reason="needs a C compiler")
def test_a_forked_child_does_not_wait_for_threads_that_it_does_not_have():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        z = logits(400, 1000)
        with torch.no_grad():
            expected = entmax15(z)
        child = os.fork()
        if child == 0:
            # PyTorch's operators would wait for threads: only ours may run on so many numbers.
            os._exit(0 if (entmax15(z).numpy() == expected.numpy()).all() else 1)
        for _ in range(600):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits")
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        torch.set_num_threads(threads)

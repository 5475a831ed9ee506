"""The compatible names agree with the package entmax in signatures, values and gradients."""

import inspect

import pytest
import torch

from fairseq_sparse.ops import entmax_compat as ours

package = pytest.importorskip("entmax")

LEFT_OUT = {"normmax_bisect", "budget_bisect", "normmax_bisect_loss"}
LEFT_OUT |= {"NormmaxBisect", "BudgetBisect", "NormmaxBisectLoss"}
LOSSES = ["SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss"]


def value_and_gradients(function, *inputs):
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    value = function(*inputs)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    wanted = [x for x in inputs if x.requires_grad]
    return [value, *torch.autograd.grad(value, wanted, weights)]


def assert_same(module_of_function, *inputs):
    found, expected = (
        value_and_gradients(module_of_function(module), *inputs) for module in (ours, package)
    )
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_names_and_signatures_are_those_of_the_package():
    public = {name for name, value in vars(package).items() if callable(value)}
    assert set(ours.__all__) == public - LEFT_OUT
    for name in ours.__all__:
        here, there = (
            [(p.name, p.default) for p in inspect.signature(getattr(m, name)).parameters.values()]
            for m in (ours, package)
        )
        assert here == there, name


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect"])
def test_mappings(name):
    ks = () if name.endswith("bisect") else (1, 3, 100)  # which change nothing
    for scale in (0.1, 1.0, 30.0):
        z = scale * torch.randn(3, 4, 20, dtype=torch.float64)
        z[0, 1, :7] = -float("inf")
        for options in ({}, {"dim": 0}, {"dim": 1}, *({"k": k} for k in ks)):
            assert_same(lambda module, o=options: lambda x: getattr(module, name)(x, **o), z)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_alpha_of_each_row_and_its_gradient(dim):
    z = torch.randn(4, 6, dtype=torch.float64)
    shape = list(z.shape)
    shape[dim] = 1
    alpha = 1.05 + 1.5 * torch.rand(shape, dtype=torch.float64)
    assert_same(lambda module: lambda x, a: module.entmax_bisect(x, a, dim), z, alpha)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Sparsemax", {"dim": 0, "k": 2}),
        ("Entmax15", {"dim": 1}),
        ("SparsemaxBisect", {"dim": 0, "n_iter": 60}),
        ("EntmaxBisect", {"alpha": 1.3, "dim": 0}),
        ("EntmaxBisect", {}),
    ],
)
def test_modules(name, options):
    z = torch.randn(5, 7, dtype=torch.float64)
    assert_same(lambda module: getattr(module, name)(**options), z)


def test_a_learned_alpha_is_a_parameter_of_the_module():
    alpha = torch.nn.Parameter(torch.tensor(1.4))
    module = ours.EntmaxBisect(alpha)
    assert [id(p) for p in module.parameters()] == [id(alpha)]
    module(torch.randn(2, 5))[:, 0].sum().backward()
    assert alpha.grad is not None


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    z = 3 * torch.randn(8, 12, dtype=torch.float64)
    z[1, 3:7] = z[4, 6:] = -1e3  # masked; the package's losses of -inf are NaN
    target = torch.tensor([2, 0, 11, 2, 5, 7, 2, 1])
    for reduction in ("elementwise_mean", "sum", "none"):
        for ignore_index in (-100, 2):
            options = {"reduction": reduction, "ignore_index": ignore_index}
            assert_same(lambda module, o=options: getattr(module, name)(**o), z, target)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sparsemax_loss", {"k": 3}),
        ("entmax15_loss", {"k": 3}),
        ("sparsemax_bisect_loss", {"n_iter": 60}),
        ("entmax_bisect_loss", {"alpha": 1.25}),
        ("entmax_bisect_loss", {"alpha": torch.tensor(1.75, dtype=torch.float64)}),
    ],
)
def test_loss_functions_give_one_loss_a_row(name, options):
    z = torch.randn(8, 12, dtype=torch.float64)
    target = torch.randint(12, (8,))
    assert_same(lambda module: lambda x, y: getattr(module, name)(x, y, **options), z, target)


def test_what_is_not_served_is_refused():
    z, target = torch.randn(2, 5), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="alpha must be a finite number above 1, got 0.5"):
        ours.entmax_bisect(z, 0.5)
    with pytest.raises(ValueError, match="alpha must exceed 1"):
        ours.entmax_bisect(z, torch.tensor(0.5))
    with pytest.raises(ValueError, match="one alpha"):
        ours.entmax_bisect_loss(z, target, torch.tensor([1.5, 1.6]))
    with pytest.raises(ValueError, match="elementwise_mean, sum, none, got mean"):
        ours.SparsemaxLoss(reduction="mean")
    with pytest.raises(TypeError, match="floating point"):
        ours.sparsemax(torch.arange(4))
    with pytest.raises(ImportError, match="normmax_bisect"):
        from fairseq_sparse.ops.entmax_compat import normmax_bisect  # noqa: F401

"""The registered operators: what computes them, their gradients, and ``vmap``.

Each operator has a reference in PyTorch, for any device, and may have kernels for CPUs, in C, and
for GPUs, in Triton. A kernel is registered with the condition under which it applies; elsewhere the
reference computes. To ``torch.compile``, ``vmap``, fake tensors and dispatch modes an operator is
one step, whatever computes it. The user's choice between them is in ``backends.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from inspect import Parameter, Signature
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops import backends

_NAMESPACE = "fairseq_sparse"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")
_KEYS = {"cpu": "CPU", "gpu": "CUDA"}
_BACKENDS = {"cpu": "cpu", "cuda": "gpu"}  # by type of device
_references: dict[str, Callable[..., Any]] = {}
_conditions: dict[tuple[str, str], Callable[..., bool]] = {}
Operation = torch._ops.OpOverload


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """Return a decorator that registers an operator, given its reference.

    The decorated function must return new tensors, contiguous ones, and becomes the registered
    operator, which calls a kernel where one applies.

    Args:
        schema: name, arguments and results, as ``torch.library`` wants them.
        fake: returns empty results, from arguments without values.
    """
    name = schema.partition("(")[0]

    def register(reference: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*args: Any) -> Any:
            backends.record(name, "reference")
            return reference(*args)

        _references[name] = reference
        _library.define(schema)
        _library.impl(name, compute, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)
        operation = getattr(torch.ops.fairseq_sparse, name).default
        torch.library.register_vmap(operation, _loop(operation), lib=_library)
        return operation

    return register


def differentiable(
    operation: Operation, setup_context: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an operator as a function with a gradient.

    The gradient belongs to an autograd function around the operator and not, by PyTorch's
    ``register_autograd``, to the operator: ``torch.func.grad`` supports only the former. It is left
    out where grad mode is off: for a short row it takes longer than a kernel.

    Args:
        operation: a registered operator.
        setup_context, backward: those of the autograd function.
    """

    def forward(*args: Any) -> Any:
        return operation(*args)

    # PyTorch asks for it at each call, and torch.compile counts the parameters.
    names = [argument.name for argument in operation._schema.arguments]
    forward.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_ONLY) for n in names])
    members = {"forward": forward, "setup_context": setup_context, "backward": backward}
    members = {name: staticmethod(member) for name, member in members.items()}
    name = operation._schema.name.partition("::")[2].title().replace("_", "")
    function = type(name, (Function,), {**members, "generate_vmap_rule": True})

    def call(*args: Any) -> Any:
        return function.apply(*args) if torch.is_grad_enabled() else operation(*args)

    return call


def kernel(backend: str, name: str, fits: Callable[..., bool]) -> Callable[[Callable], Callable]:
    """Return a decorator that registers a kernel of an operator.

    Args:
        backend: ``cpu`` or ``gpu``.
        name: that of the operator, whose arguments the kernel takes.
        fits: whether the kernel applies to these arguments. It must not read values on a GPU.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*args: Any) -> Any:
            if backends.allows(backend) and fits(*args):
                backends.record(name, backend)
                return function(*args)
            backends.record(name, "reference")
            return _references[name](*args)

        _conditions[name, backend] = fits
        _library.impl(name, compute, _KEYS[backend])
        return function

    return register


def has_kernel(name: str, *args: Any) -> bool:
    """Return whether a kernel, not the reference, would compute an operator for these arguments.

    Operators whose reference is slower than plain PyTorch are called only then.
    """
    backend = _BACKENDS.get(args[0].device.type, "")
    fits = _conditions.get((name, backend))
    return fits is not None and backends.allows(backend) and fits(*args)


def reference_of(operation: Operation) -> Callable[..., Any]:
    """Return the reference of a registered operator, for modes that count its operations."""
    return _references[operation._schema.name.partition("::")[2]]


def _loop(operation: Operation) -> Callable[..., Any]:
    """Return a rule for ``vmap``: one call for each element of the batch."""

    def rule(info: Any, in_dims: tuple, *args: Any) -> tuple[Any, Any]:
        found = [
            operation(*map(partial(_element, i), args, in_dims)) for i in range(info.batch_size)
        ]
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        results = zip(*found, strict=True)
        return tuple(map(torch.stack, results)), (0,) * len(found[0])

    return rule


def _element(i: int, x: Any, dim: Optional[int]) -> Any:
    return x if dim is None else x.select(dim, i)


def once_differentiable(result: Tensor, *sources: Tensor) -> Tensor:
    """Return a gradient, ``result``, so that differentiating it with respect to ``sources`` raises.

    PyTorch's decorator of this name raises only where the incoming gradient has a graph itself. The
    gradient of a plain sum has none, so that its derivative would silently be 0.
    """
    return _NoDerivative.apply(result, *sources) if torch.is_grad_enabled() else result


class _NoDerivative(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(result, *sources):
        return result.view_as(result)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "losses and attention of this package have no second derivative: their gradient cannot "
            "be differentiated (create_graph=True)"
        )


def equals_one(x: Tensor) -> bool:
    """Return whether a number is 1; False where reading it would wait for a GPU, or it has none."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or not x.is_cpu:
        return False
    try:
        return x.item() == 1
    except RuntimeError:  # within vmap
        return False


def share_rows(z: Tensor) -> None:
    """Tell PyTorch, if ``z`` is distributed, that rows can be solved on their own shards."""
    # If it was never imported, z cannot be a DTensor; importing it is slow.
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(z, distributed.DTensor):
        _share_rows()


@cache
def _share_rows() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.fairseq_sparse.entmax.default)
    def _of_entmax(z, row_alpha, *options):
        return [
            ([each] * 2, [each, None if row_alpha is None else each, *[None] * len(options)])
            for each in (Replicate(), Shard(0))  # no row is split
        ]

    @register_sharding(torch.ops.fairseq_sparse.entmax_backward.default)
    def _of_gradient(p, grad, alpha):
        return [([each], [each, each, None]) for each in (Replicate(), Shard(0))]

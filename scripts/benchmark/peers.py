"""Other packages' kernels, each by its public entry point.

A package is imported when its function is first called. If it is not installed, or broken, its row
of the results says so and how to install it; the other rows are not affected.

quack-kernels      quack.linear_cross_entropy.chunked_linear_cross_entropy, quack.cross_entropy
liger-kernel       liger_kernel.transformers.functional.liger_fused_linear_cross_entropy; its
                   kernels are in Triton or, with LIGER_KERNEL_IMPL=cutedsl, in CuTe; the choice is
                   made on import, so a process has only one of them
cut-cross-entropy  cut_cross_entropy.linear_cross_entropy, which skips small gradients, and its
                   exact mode: impl="cce_exact", in release 25.1 filter_eps=None
torch              F.linear_cross_entropy with options, which works in chunks (without options, it
                   computes the product and then the loss); torch.compile
entmax             entmax.losses on the logits of F.linear, in fp32
flash-attn         flash_attn.flash_attn_func, version 2; version 3 is flash_attn_interface,
                   version 4 flash_attn.cute
adasplash          adasplash.adasplash_v1 and adasplash.adasplash_v2

Run as a script, this module lists the packages that are not installed.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark.harness import NotInstalled

# Functions of features [N, d], weight [V, d] and target [N] that give the mean loss.
Layer = Callable
# Functions of query, key and value [batch, heads, length, head_dim], the query already scaled.
Attention = Callable

# How to install each module.
INSTALL = {
    "adasplash": "pip install adasplash==0.2.2",
    "cut_cross_entropy": "pip install "
    "'cut-cross-entropy @ git+https://github.com/apple/ml-cross-entropy.git'",
    "entmax": "pip install entmax==1.3",
    "flash_attn": "pip install flash-attn --no-build-isolation",
    "flash_attn.cute": "pip install --pre flash-attn-4",
    "flash_attn_interface": "python setup.py install in hopper/ of "
    "https://github.com/Dao-AILab/flash-attention",
    "liger_kernel": "pip install liger-kernel, for CuTe liger-kernel[cutedsl]",
    "quack": "pip install quack-kernels",
}


def missing() -> Iterator[str]:
    """Yield the modules that are not installed, each with its installation command."""
    for module, remedy in INSTALL.items():
        if not is_installed(module):
            yield f"{module}: {remedy}"


def is_installed(module: str) -> bool:
    """Return whether a module is installed; a folder without a module of its own does not count."""
    try:
        known = find_spec(module)
    except (ImportError, ValueError):  # raised by the parent package
        return False
    return known is not None and known.origin is not None


def entry(module: str, name: str) -> Callable:
    """Return a function of a package, which is imported when it is first called."""

    @cache
    def found() -> Callable:
        package = next(x for x in (module, module.partition(".")[0]) if x in INSTALL)
        if not is_installed(package):
            raise NotInstalled(INSTALL[package])
        return getattr(import_module(module), name)

    return lambda *arguments, **settings: found()(*arguments, **settings)


def cross_entropy_layers(dtype, device: str) -> dict[str, Layer]:
    """Return layers with cross-entropy."""
    import torch
    import torch.nn.functional as F

    found: dict[str, Layer] = {}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        chunked = torch.nn.LinearCrossEntropyOptions()
        found["F.linear_cross_entropy, chunked"] = lambda x, w, y: F.linear_cross_entropy(
            x, w, y, options=chunked
        )
    elif device != "cpu":
        found["F.linear_cross_entropy, chunked"] = newer_torch
    if device == "cpu":
        return found
    # Else a layer of another size gets kernels for any size, which are slower.
    torch.compiler.reset()
    found["torch.compile"] = torch.compile(
        lambda x, w, y: F.cross_entropy(F.linear(x, w), y), dynamic=False
    )
    kernels = os.environ.get("LIGER_KERNEL_IMPL") or "triton"
    found[f"Liger, {kernels}"] = entry(
        "liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"
    )
    if dtype == torch.float32:  # the others need half precision
        return found
    found["QuACK"] = entry("quack.linear_cross_entropy", "chunked_linear_cross_entropy")
    cut = entry("cut_cross_entropy", "linear_cross_entropy")
    found["cut_cross_entropy"] = cut
    found["cut_cross_entropy, exact"] = lambda x, w, y: cut(x, w, y, **exact_mode())
    return found


def newer_torch(*_):
    raise NotInstalled("a PyTorch with torch.nn.LinearCrossEntropyOptions, such as 2.13")


def exact_mode() -> dict:
    """Return the settings of cut_cross_entropy that skip no gradient."""
    from cut_cross_entropy import linear_cross_entropy

    known = inspect.signature(linear_cross_entropy).parameters
    return {"impl": "cce_exact"} if "accum_c_fp32" in known else {"filter_eps": None}


def entmax_layers(device: str) -> dict[str, Layer]:
    """Return layers with the 1.5-entmax loss of the package entmax on stored logits; none on a CPU,
    where losses.py measures it."""
    import torch.nn.functional as F

    if device == "cpu":
        return {}
    partial = entry("entmax.losses", "entmax15_loss")
    bisect = entry("entmax.losses", "entmax_bisect_loss")
    return {
        "entmax package, k=100": lambda x, w, y: partial(F.linear(x, w).float(), y, 100).mean(),
        "entmax package, bisect": lambda x, w, y: bisect(F.linear(x, w).float(), y).mean(),
    }


def cross_entropies(z) -> dict[str, Callable]:
    """Return cross-entropies of logits and target, summed; on a CPU none."""
    if not z.is_cuda:
        return {}
    liger = entry("liger_kernel.transformers.functional", "liger_cross_entropy")
    quack = entry("quack", "cross_entropy")
    return {
        "Liger cross-entropy": lambda z, y: liger(z, y, reduction="sum"),
        "QuACK cross-entropy": lambda z, y: quack(z, y, reduction="sum"),
    }


def entmax_mappings(z) -> dict[str, Callable]:
    """Return both versions of adasplash's 1.5-entmax of logits; none on a CPU."""
    if not z.is_cuda:
        return {}
    names = ("triton_entmax_v1", "triton_entmax_v2")
    functions = {name: entry("adasplash", name) for name in names}
    return {
        f"adasplash.{name}": lambda z, function=function: function(z, alpha=1.5)
        for name, function in functions.items()
    }


def softmax_attentions(
    dtype, device: str, causal: bool, dropout: float, padded: bool
) -> dict[str, Attention]:
    """Return softmax attention of FlashAttention and of PyTorch's own backends, one by one."""
    import torch
    import torch.nn.functional as F

    # With a mask, PyTorch's choice of a backend is the baseline.
    if device == "cpu" or padded:
        return {}

    def by(backend: str) -> Attention:
        def attention(q, k, v):
            from torch.nn.attention import SDPBackend, sdpa_kernel  # not in every PyTorch

            with sdpa_kernel(getattr(SDPBackend, backend)):
                return F.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, dropout_p=dropout, scale=1.0
                )

        return attention

    found = {"SDPA, flash": by("FLASH_ATTENTION"), "SDPA, cuDNN": by("CUDNN_ATTENTION")}
    if dtype == torch.float32:
        return found
    settings = {"softmax_scale": 1.0, "causal": causal}
    version_2 = entry("flash_attn", "flash_attn_func")
    found["FlashAttention 2"] = length_first(
        lambda q, k, v: version_2(q, k, v, dropout_p=dropout, **settings)
    )
    for version, module in (3, "flash_attn_interface"), (4, "flash_attn.cute"):
        function = entry(module, "flash_attn_func")
        if dropout == 0:  # versions 3 and 4 have no dropout
            found[f"FlashAttention {version}"] = length_first(
                lambda q, k, v, function=function: function(q, k, v, **settings)
            )
    return found


def length_first(attention: Callable) -> Attention:
    """Adapt a function of ``[batch, length, heads, head_dim]``, which may return a tuple."""

    def transposed(q, k, v):
        result = attention(*(x.transpose(1, 2) for x in (q, k, v)))
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return transposed


def entmax_attentions(device: str, causal: bool, head_dim: int) -> dict[str, Attention]:
    """Return adasplash's 1.5-entmax attention, which scales the scores and has no dropout."""
    if device == "cpu":
        return {}
    scale = head_dim**0.5
    version_1, version_2 = entry("adasplash", "adasplash_v1"), entry("adasplash", "adasplash_v2")
    found: dict[str, Attention] = {
        "AdaSplash 1": lambda q, k, v: version_1(q * scale, k, v, alpha=1.5, is_causal=causal)
    }
    if causal:  # version 2 is causal only
        found["AdaSplash 2"] = lambda q, k, v: version_2(q * scale, k, v)
    return found


if __name__ == "__main__":
    print(*missing(), sep="\n")

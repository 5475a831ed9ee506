"""Other packages' kernels, each by its public entry point, where it is installed.

quack-kernels      quack.linear_cross_entropy.chunked_linear_cross_entropy, quack.cross_entropy
liger-kernel       liger_kernel.transformers.functional.liger_fused_linear_cross_entropy; its
                   kernels are in Triton, with LIGER_KERNEL_IMPL=cutedsl in CuTe, chosen when it
                   is imported: one of the two in a process
cut-cross-entropy  cut_cross_entropy.linear_cross_entropy, which leaves out small gradients, and
                   with filter_eps=None does not
torch              F.linear_cross_entropy with options, which works on chunks (without options
                   it is the product and the loss one after the other); torch.compile
entmax             entmax.losses on the logits of F.linear, in fp32
flash-attn         flash_attn.flash_attn_func, version 2; version 3 is flash_attn_interface
adasplash          adasplash.adasplash_v1 and adasplash.adasplash_v2
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

# Functions of features [N, d], weight [V, d] and target [N] that give the mean loss.
Layer = Callable
# Functions of query, key and value [batch, heads, length, head_dim], the query already scaled.
Attention = Callable


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
    if device == "cpu":
        return found
    found["torch.compile"] = torch.compile(lambda x, w, y: F.cross_entropy(F.linear(x, w), y))
    if find_spec("liger_kernel"):
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        kernels = os.environ.get("LIGER_KERNEL_IMPL") or "triton"
        found[f"Liger, {kernels}"] = liger_fused_linear_cross_entropy
    if dtype == torch.float32:  # the rest is for halves
        return found
    if find_spec("quack"):
        from quack.linear_cross_entropy import chunked_linear_cross_entropy

        found["QuACK"] = chunked_linear_cross_entropy
    if find_spec("cut_cross_entropy"):
        from cut_cross_entropy import linear_cross_entropy

        found["cut_cross_entropy"] = linear_cross_entropy
        found["cut_cross_entropy, exact"] = lambda x, w, y: linear_cross_entropy(
            x, w, y, filter_eps=None
        )
    return found


def entmax_layers(device: str) -> dict[str, Layer]:
    """Return layers with the 1.5-entmax loss of the package entmax, for logits that are in memory;
    on a CPU, where losses.py measures it, none."""
    import torch.nn.functional as F

    if device == "cpu" or not find_spec("entmax"):
        return {}
    from entmax.losses import entmax15_loss, entmax_bisect_loss

    return {
        "entmax package, k=100": lambda x, w, y: entmax15_loss(
            F.linear(x, w).float(), y, 100
        ).mean(),
        "entmax package, bisect": lambda x, w, y: entmax_bisect_loss(
            F.linear(x, w).float(), y
        ).mean(),
    }


def cross_entropies(z) -> dict[str, Callable]:
    """Return cross-entropies of logits and target, summed."""
    found = {}
    if z.is_cuda and find_spec("liger_kernel"):
        from liger_kernel.transformers.functional import liger_cross_entropy

        found["Liger cross-entropy"] = lambda z, y: liger_cross_entropy(z, y, reduction="sum")
    if z.is_cuda and find_spec("quack"):
        from quack import cross_entropy

        found["QuACK cross-entropy"] = lambda z, y: cross_entropy(z, y, reduction="sum")
    return found


def softmax_attentions(
    dtype, device: str, causal: bool, dropout: float, padded: bool
) -> dict[str, Attention]:
    """Return softmax attention of FlashAttention and of PyTorch's own backends, one by one."""
    import torch
    import torch.nn.functional as F

    if device == "cpu":
        return {}
    found: dict[str, Attention] = {}
    if not padded:  # with a mask, PyTorch's choice of a backend is the baseline
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def by(backend: SDPBackend) -> Attention:
            def attention(q, k, v):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(
                        q, k, v, is_causal=causal, dropout_p=dropout, scale=1.0
                    )

            return attention

        found["SDPA, flash"] = by(SDPBackend.FLASH_ATTENTION)
        if hasattr(SDPBackend, "CUDNN_ATTENTION"):
            found["SDPA, cuDNN"] = by(SDPBackend.CUDNN_ATTENTION)
    if padded or dtype == torch.float32:
        return found
    if find_spec("flash_attn"):
        from flash_attn import flash_attn_func

        found["FlashAttention 2"] = length_first(
            lambda q, k, v: flash_attn_func(
                q, k, v, dropout_p=dropout, softmax_scale=1.0, causal=causal
            )
        )
    if find_spec("flash_attn_interface") and dropout == 0:  # it has no dropout
        from flash_attn_interface import flash_attn_func as flash_attn_3

        found["FlashAttention 3"] = length_first(
            lambda q, k, v: flash_attn_3(q, k, v, softmax_scale=1.0, causal=causal)
        )
    return found


def length_first(attention: Callable) -> Attention:
    """Call a function of ``[batch, length, heads, head_dim]``, which may return more than that."""

    def transposed(q, k, v):
        result = attention(*(x.transpose(1, 2) for x in (q, k, v)))
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return transposed


def entmax_attentions(device: str, causal: bool, head_dim: int) -> dict[str, Attention]:
    """Return 1.5-entmax attention without dropout, which scales the scores by itself."""
    if device == "cpu" or not find_spec("adasplash"):
        return {}
    import adasplash

    scale = head_dim**0.5
    found: dict[str, Attention] = {
        "AdaSplash 1": lambda q, k, v: adasplash.adasplash_v1(
            q * scale, k, v, alpha=1.5, is_causal=causal
        )
    }
    if causal:  # all that it has
        found["AdaSplash 2"] = lambda q, k, v: adasplash.adasplash_v2(q * scale, k, v)
    return found

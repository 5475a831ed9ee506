"""Logging of the alpha that attention learns."""

from functools import partial

import torch
from fairseq.logging import metrics
from torch import nn

from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention


def log_learned_alpha(model: nn.Module) -> None:
    """Make a Transformer log its learned alphas during training, under any criterion.

    For each place of attention it logs the mean over layers and heads (``alpha_enc``,
    ``alpha_dec``, ``alpha_cross``), the minimum and the maximum (``alpha_enc_min`` and so on).
    They are computed when a line of the log is written, not at each update.
    """
    places: dict[str, list[SparseMultiheadAttention]] = {}
    for name, module in model.named_modules():
        if isinstance(module, SparseMultiheadAttention) and module.learns_alpha:
            places.setdefault(_place_of(name), []).append(module)
    if places:
        model.register_forward_pre_hook(partial(_log, places))


def _place_of(name: str) -> str:
    if name.endswith("encoder_attn"):
        return "cross"
    return "enc" if name.startswith("encoder.") else "dec"


def _log(places: dict[str, list[SparseMultiheadAttention]], model: nn.Module, inputs) -> None:
    if not model.training:
        return
    for place, modules in places.items():
        for suffix, reduce in (("", torch.mean), ("_min", torch.amin), ("_max", torch.amax)):
            metrics.log_derived(f"alpha_{place}{suffix}", partial(_reduced, modules, reduce))


def _reduced(modules: list[SparseMultiheadAttention], reduce, meters) -> float:
    with torch.no_grad():
        return round(reduce(torch.stack([module.alpha() for module in modules])).item(), 4)

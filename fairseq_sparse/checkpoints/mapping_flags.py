"""The flags that say how a model maps scores to weights, and that its parameters do not show."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from fairseq_sparse.modules.attention_config import attention_kinds
from fairseq_sparse.modules.output_transforms import transforms_with


def read(settings: Any) -> dict[str, str]:
    """Return the flags of the output transform and of the attention, with their values.

    Args:
        settings: those of a model, as fairseq gives them to a task or saves them.
    """
    if OmegaConf.is_config(settings):
        settings = OmegaConf.to_container(settings)
    values = settings if isinstance(settings, Mapping) else vars(settings)
    flags = {"--output-transform": str(values.get("output_transform") or "softmax")}
    if flags["--output-transform"] in transforms_with("takes_alpha"):
        flags["--output-alpha"] = _alpha(values.get("output_alpha"))
    kinds = attention_kinds(Namespace(**values))
    if len(set(kinds.values())) == 1:
        flags["--attention"] = kinds["enc"]
    else:
        flags.update({f"--attention-{place}": kind for place, kind in kinds.items()})
    if "entmax" in kinds.values():
        flags["--attention-alpha"] = _alpha(values.get("attention_alpha"))
    return flags


def unlike(flags: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return those of the flags that the others lack or have with another value, as text."""
    return " ".join(f"{name} {x}" for name, x in flags.items() if others.get(name) != x)


def _alpha(value: Any) -> str:
    return str(float(value or 1.5)) if isinstance(value, (int, float)) else str(value or 1.5)

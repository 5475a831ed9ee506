"""Checks that the parameters of a checkpoint fit a model, with messages that name the flags."""

import re
from collections.abc import Iterable

from torch import Tensor, nn

from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention

# Parameters that some kinds of attention add to those of fairseq's own.
_OF_ATTENTION = re.compile(r"\.(norm\.\w+|alpha_logit|query_scale\.\w+\.\w+)$")


def check_parameters(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Refuse parameters for dictionaries of another size or another kind of attention.

    Raises:
        ValueError: naming them and the remedy.
    """
    _check_vocabulary(model, state_dict)
    _check_attention(model, state_dict)


def _check_vocabulary(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        part, _, rest = name.partition(".")
        theirs = state_dict.get(name, parameter)
        if rest == "embed_tokens.weight" and len(theirs) != len(parameter):
            raise ValueError(
                f"the {part} of the checkpoint has a dictionary of {len(theirs)} tokens, but "
                f"this dictionary has {len(parameter)}: give the folder of data, with its dict "
                "files, that the model was trained on"
            )


def _check_attention(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    attention = {
        _any_layer(name): module
        for name, module in model.named_modules()
        if isinstance(module, SparseMultiheadAttention)
    }
    ours = {
        f"{place}.{name}": place
        for place, module in attention.items()
        for name in module.state_dict()
        if _OF_ATTENTION.search(f".{name}")
    }
    present = {_any_layer(name) for name in state_dict}
    theirs = {name for name in present if "_attn." in name and _OF_ATTENTION.search(name)}
    # A sharded checkpoint names no parameters.
    missing = sorted(
        name
        for name, place in ours.items()
        if name not in theirs and f"{place}.q_proj.weight" in present
    )
    if missing:
        kinds = _sorted_list({attention[ours[name]].attention_kind for name in missing})
        plain = _sorted_list(kind for kind, entry in ATTENTION_KINDS.items() if entry.norm is None)
        adds = f"--attention {kinds} (or --attention-enc, -dec, -cross) adds"
        if all(name.endswith("alpha_logit") for name in missing):
            adds = "--attention-alpha-learnable adds"
        elif all("query_scale." in name for name in missing):
            adds = "--attention-scale-queries adds"
        if theirs:
            remedy = f"It has {_sorted_list(theirs)}: give the options that it was trained with"
        else:
            remedy = (
                f"Its parameters fit --attention {plain} with a fixed alpha and without "
                "--attention-scale-queries"
            )
        raise ValueError(
            f"the checkpoint has no {_sorted_list(missing)}, which {adds}: it was trained with "
            f"another attention. {remedy}; any other attention must be trained from scratch, "
            "without --finetune-from-model"
        )
    surplus = sorted(theirs - ours.keys())
    if surplus:
        raise ValueError(
            f"the checkpoint has {_sorted_list(surplus)}, which the attention of this model does "
            "not have: give the --attention (or --attention-enc, -dec, -cross), "
            "--attention-alpha-learnable and --attention-scale-queries that it was trained with"
        )


def _any_layer(name: str) -> str:
    """Return the name of a parameter or module with ``*`` for the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", name)


def _sorted_list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

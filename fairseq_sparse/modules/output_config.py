"""The flags of the output transform, shared by all models of this package."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
import logging
from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_sparse.modules.model_settings import criterion_name
from fairseq_sparse.modules.output_projection import OutputProjection
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS, transforms_with
from fairseq_sparse.ops.checks import ALGORITHMS
from fairseq_sparse.ops.mappings import TOPK

logger = logging.getLogger(__name__)

OUTPUT_INITS = ("stock", "xavier_uniform")
# The default, and the former default, which is in the settings of older checkpoints.
_DEFAULT_TAUS = ("weights", "data")


@dataclass
class OutputConfig(FairseqDataclass):
    """Flags that choose the output transform. No name may begin with encoder_ or decoder_, because
    fairseq's TransformerConfig would move it elsewhere."""

    output_transform: str = field(
        default="softmax",
        metadata={"help": "mapping from logits to probabilities at the output"},
    )
    output_alpha: float = field(
        default=1.5, metadata={"help": "alpha > 1 of --output-transform entmax and alpha_relu"}
    )
    output_algorithm: ChoiceEnum(ALGORITHMS) = field(
        default="newton",
        metadata={
            "help": "how sparsemax and entmax find their threshold, with the same result: 'newton' "
            "(a search without a sort, the fastest); 'bisect' ('Sparse Sequence-to-Sequence "
            "Models', Algorithm 1); for alpha 1.5 and 2 'sort' (Algorithm 2) and 'partial' (a sort "
            "of the --output-topk largest logits, and of more where they do not hold the support)"
        },
    )
    output_topk: int = field(
        default=TOPK,
        metadata={"help": "the number of logits that --output-algorithm partial begins with"},
    )
    output_tau: str = field(
        default="weights",
        metadata={
            "help": "threshold of alpha_relu: its value, or how it is found before the first "
            "update: 'weights' (from the spread of the untrained logits), 'data' (mean threshold "
            "of alpha-entmax on the first batch; for fine-tuning), 'formula' ('Speeding Up "
            "Entmax', Lemmas 2 and 3; for --output-init xavier_uniform)"
        },
    )
    output_init: ChoiceEnum(OUTPUT_INITS) = field(
        default="stock",
        metadata={
            "help": "how the output weights are drawn: 'stock', as in fairseq (for Transformers "
            "normal with variance 1 / width), or 'xavier_uniform', as in OpenNMT-py, for which "
            "Lemma 3 of 'Speeding Up Entmax' holds; an embedding shared with the output is drawn "
            "the same way"
        },
    )

    def _get_type(self, attribute_name: str) -> Any:
        """Same as in fairseq, except that the choices of --output-transform are read when needed: a
        package in --user-dir may have added some."""
        if attribute_name == "output_transform":
            return ChoiceEnum(OUTPUT_TRANSFORMS)
        return super()._get_type(attribute_name)


def build_output_projection(linear: nn.Linear, args: Namespace) -> OutputProjection:
    """Wrap a decoder's projection as the flags ask for.

    Raises:
        ValueError: a flag is out of range, or does not belong to the transform.
    """
    _check_tau(args)
    _check_topk(args)
    if str(args.output_init) == "xavier_uniform":
        _check_no_pretrained_output(args)
        draw_xavier_uniform(linear.weight)
    return OutputProjection(
        linear,
        transform=str(args.output_transform),
        alpha=args.output_alpha,
        algorithm=str(args.output_algorithm),
        topk=args.output_topk,
        tau=args.output_tau,
    )


@torch.no_grad()
def draw_xavier_uniform(weight: Tensor) -> None:
    """Redraw output weights ``[V, d]`` from U(-b, b) with ``b = sqrt(6 / (V + d))``.

    A row of zeros, the embedding of the padding symbol, stays zero.
    """
    nonzero = weight.ne(0).any(dim=1, keepdim=True)
    nn.init.xavier_uniform_(weight)
    weight.mul_(nonzero)


def _check_tau(args: Namespace) -> None:
    """Refuse a tau that the transform ignores; only warn if the model is not for training."""
    takers = transforms_with("takes_tau")
    if str(args.output_transform) in takers or args.output_tau in _DEFAULT_TAUS:
        return
    message = (
        f"--output-tau {args.output_tau} has no effect on --output-transform "
        f"{args.output_transform}: it is for {', '.join(takers)}; leave it out"
    )
    if criterion_name(args) is not None:
        raise ValueError(message)
    logger.warning(message)


def _check_topk(args: Namespace) -> None:
    """Warn of a number of largest logits that is ignored; older checkpoints have such numbers,
    often 0."""
    if str(args.output_algorithm) != "partial" and args.output_topk not in (0, TOPK):
        logger.warning(
            f"--output-topk {args.output_topk} has no effect without --output-algorithm partial"
        )


def changed_flags(args: Any) -> list[str]:
    """Return the flags of the output that differ from their defaults, as on the command line."""
    values = {each.name: getattr(args, each.name, each.default) for each in fields(OutputConfig)}
    defaults = {each.name: each.default for each in fields(OutputConfig)}
    if values["output_tau"] in _DEFAULT_TAUS:
        del values["output_tau"]
    if str(values["output_algorithm"]) != "partial":  # in older checkpoints it is often 0
        del values["output_topk"]
    return [
        f"--{name.replace('_', '-')} {value}"
        for name, value in values.items()
        if str(value) != str(defaults[name]) and name.startswith("output_")
    ]


def _check_no_pretrained_output(args: Namespace) -> None:
    """Refuse to redraw pretrained embeddings that are also the output weights; a model that is not
    for training gets its weights from a checkpoint."""
    if criterion_name(args) is None:
        return
    flags = []
    if getattr(args, "share_all_embeddings", False):
        flags = ["encoder_embed_path", "decoder_embed_path"]
    elif getattr(args, "share_decoder_input_output_embed", False):
        flags = ["decoder_embed_path"]
    given = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(args, flag, None)]
    if given:
        raise ValueError(
            f"--output-init xavier_uniform would redraw the vectors of {', '.join(given)}, which "
            "are also the output weights: leave one of them out"
        )

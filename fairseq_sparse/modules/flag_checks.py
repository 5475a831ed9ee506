"""Checks that a model's flags fit its criterion and its task, before training or search."""

from ast import literal_eval
from collections.abc import Sequence
from typing import Any, Optional

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from torch import nn

from fairseq_sparse.modules.attention_config import attention_kinds
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.model_settings import criterion_name
from fairseq_sparse.modules.output_config import changed_flags
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS, transforms_with


def check_training(args: Any, task) -> None:
    """Refuse a criterion that does not fit the output or the attention, and a search in validation
    that does not fit the output.

    Raises:
        ValueError: naming the flags, and what to change.
    """
    transform = str(args.output_transform)
    check_criterion(criterion_name(args), transform)
    check_alignment_criterion(criterion_name(args), args)
    task_cfg = getattr(task, "cfg", None)
    if getattr(task_cfg, "eval_bleu", False):
        check_search(type(task), task_cfg, transform, "--eval-bleu")


def check_criterion(criterion: Optional[str], transform: str) -> None:
    """Refuse a criterion that does not fit the transform, before anything is trained.

    Raises:
        ValueError: naming the criterion, the transform and the flag to change.
    """
    fits = _transforms_of(criterion)
    if fits is None or transform in fits or transform not in OUTPUT_TRANSFORMS:
        return  # an unknown transform is refused elsewhere
    raise ValueError(
        f"--criterion {criterion} does not fit --output-transform {transform}: it is for "
        f"{', '.join(fits)}; use --criterion {OUTPUT_TRANSFORMS[transform].criterion}"
    )


def check_alignment_criterion(criterion: Optional[str], args: Any) -> None:
    """Refuse fairseq's criterion that trains attention on word alignments by its logarithm, where
    weights can be 0: the loss of such a link is infinite, and its gradient 0.

    Raises:
        ValueError: naming the criterion, the attention and the flag to change.
    """
    if criterion != "label_smoothed_cross_entropy_with_alignment":
        return
    kind = attention_kinds(args)["cross"]
    if kind in ATTENTION_KINDS and not ATTENTION_KINDS[kind].is_positive:
        raise ValueError(
            f"--criterion {criterion} takes the logarithm of the weights of cross-attention, which "
            f"{kind} can make 0: give --attention-cross softmax"
        )


def check_settings_of_model(criterion: str, settings: Any) -> None:
    """Refuse a criterion of this package for another output transform or a model of fairseq's own.

    Args:
        criterion: the name of the criterion.
        settings: the settings of the model.

    Raises:
        ValueError: naming the architecture or the transform, and the one to use.
    """
    arch = getattr(settings, "arch", None) or getattr(settings, "_name", None)
    kind = ARCH_MODEL_REGISTRY.get(arch, MODEL_REGISTRY.get(arch))
    if not getattr(kind, "__module__", "").startswith("fairseq.models."):
        transform = getattr(settings, "output_transform", None)
        if transform is not None:
            return check_criterion(criterion, str(transform))
        raise ValueError(
            f"--criterion {criterion} is for the models of fairseq_sparse, and --arch {arch} is "
            "none of them: use --arch transformer_sparse, or --criterion cross_entropy"
        )
    twins = [name for name in ARCH_MODEL_REGISTRY if name.replace("_sparse", "") == arch]
    twins = [name for name in twins if name != arch] or ["transformer_sparse"]
    raise ValueError(
        f"--criterion {criterion} does not fit --arch {arch}, whose output is always "
        f"softmax: use --arch {twins[0]} with --output-transform "
        f"{transforms_with('criterion', criterion)[-1]}, or --criterion cross_entropy"
    )


def _transforms_of(criterion: Optional[str]) -> Optional[Sequence[str]]:
    """Return the transforms that a criterion can train, or None if that is not known.

    Each transform names its criterion. fairseq's own criterions cannot handle zeros. Any other
    criterion may have an attribute ``output_transforms``; without it, it is accepted.
    """
    kind = CRITERION_REGISTRY.get(criterion)
    if getattr(kind, "__module__", "").startswith("fairseq.criterions"):
        return transforms_with("is_sparse", False)
    return (
        getattr(kind, "output_transforms", None) or transforms_with("criterion", criterion) or None
    )


def check_adaptive_softmax(args: Any) -> None:
    """Refuse adaptive softmax with a sparse output, and in training with any flag of the output or
    with a criterion of this package.

    Raises:
        ValueError: naming the flags.
    """
    flags, criterion = changed_flags(args), criterion_name(args)
    if flags and (criterion is not None or str(args.output_transform) != "softmax"):
        raise ValueError(f"--adaptive-softmax-cutoff does not fit {' '.join(flags)}; leave it out")
    if transforms_with("criterion", criterion):
        raise ValueError(
            f"--criterion {criterion} does not fit --adaptive-softmax-cutoff: use --criterion "
            "adaptive_loss, or leave the cutoff out"
        )


def check_tied_output(embedding: nn.Module, shape: tuple[int, int]) -> None:
    """Refuse to share an embedding with an output layer of another shape.

    Args:
        embedding: the layer that embeds the target tokens.
        shape: tokens and features of the output layer.

    Raises:
        ValueError: naming the flags.
    """
    flag = "--share-decoder-input-output-embed"
    weight = getattr(embedding, "weight", None)
    if weight is None:
        raise ValueError(
            f"{flag}: the embedding of --adaptive-input or --character-embeddings is not one "
            "matrix, which the output could share; leave one of the flags out"
        )
    tokens, features = weight.shape
    if features != shape[1]:
        raise ValueError(
            f"{flag}: the embedding has {features} features, and the output layer {shape[1]}; give "
            f"--decoder-output-dim {features}"
        )
    if tokens != shape[0]:
        raise ValueError(
            f"{flag}: the embedding has {tokens} tokens, and the output layer {shape[0]}; leave "
            "out --output-dictionary-size"
        )


def check_overrides(overrides: str, transform: nn.Module) -> None:
    """Refuse ``--model-overrides`` of the threshold of alpha-ReLU, or of the alpha it belongs to.

    The threshold is in the checkpoint, so the former has no effect, and the latter keeps it.

    Raises:
        ValueError: naming the setting.
    """
    names = [name for name in ("output_alpha", "output_tau") if name in literal_eval(overrides)]
    if transform.takes_tau and names:
        raise ValueError(
            f"--model-overrides {names[0]}: the tau of {transform.name} and the alpha that it "
            "belongs to are those of the training; leave it out; --temperature makes the output "
            "more or less sparse"
        )


def check_search(task_class: Optional[type], task_cfg, transform: str, purpose: str) -> None:
    """Refuse to search with a sparse model under a task whose search cannot deal with zeros.

    Raises:
        ValueError: naming the task, the transform and the flag to change.
    """
    kind = OUTPUT_TRANSFORMS.get(transform)
    dense = kind is None or not kind.is_sparse  # an unknown one is refused elsewhere
    if dense or getattr(task_class, "supports_sparse_outputs", False):
        return
    raise ValueError(
        f"--task {getattr(task_cfg, '_name', None)} cannot search a model trained with "
        f"--output-transform {transform} ({purpose}): stock beam search breaks on probabilities "
        "of exactly 0; use --task translation_sparse, or put SparseDecodingMixin in front of the "
        "task's class (docs/decoding.md)"
    )

"""The mixins of this package's models: building, probabilities, loss, loading, and the checks
before a model is trained or searched."""

import copy
import re
from argparse import Namespace
from collections.abc import Iterable
from typing import Any, Optional, Union

from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_sparse.checkpoints.loading import check_settings
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.learned_alpha import log_learned_alpha
from fairseq_sparse.modules.model_settings import as_namespace
from fairseq_sparse.modules.output_config import changed_flags, check_criterion, criterion_name
from fairseq_sparse.modules.output_loss import OutputLoss
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS, transforms_with
from fairseq_sparse.modules.seeded_dropout import set_dropout
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention

# Parameters that some kinds of attention add to those of fairseq's own.
_OF_ATTENTION = re.compile(r"\.(norm\.\w+|alpha_logit|query_scale\.\w+\.\w+)$")


class SparseOutputDecoder:
    """Mixin, placed before a fairseq decoder class, for a decoder with an ``output_projection``.

    With adaptive softmax, which replaces the projection, the decoder behaves like fairseq's.
    """

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        """Return (log-)probabilities of the decoder's output; log 0 is -inf."""
        if self.adaptive_softmax is not None:
            return super().get_normalized_probs(net_output, log_probs, sample)
        transform = self.output_projection.transform
        return (transform.log_probs if log_probs else transform.probs)(net_output[0])


class SparseOutputModel:
    """Mixin, placed before a fairseq model class, whose decoder has an ``output_projection``.

    A model defines what differs from fairseq in :meth:`complete_flags` and :meth:`assemble`.
    """

    @classmethod
    def build_model(cls, args: Union[Namespace, DictConfig], task):
        """Build the model that the settings ask for.

        Raises:
            ValueError: a setting holds code, or settings do not fit together.
        """
        check_settings(args)
        args = as_namespace(args, task)
        cls.complete_flags(args)
        check_training(args, task)
        model = cls.assemble(args, task)
        set_dropout(model, args)
        log_learned_alpha(model)
        return model

    @classmethod
    def complete_flags(cls, args: Namespace) -> None:
        """Fill in the flags of the model that are not set, and refuse bad ones.

        Raises:
            ValueError: naming the flag and the remedy.
        """
        raise NotImplementedError

    @classmethod
    def assemble(cls, args: Namespace, task):
        """Build the model; by default as fairseq does, from the parts that its hooks build."""
        return super().build_model(args, task)

    def forward(
        self, *args: Any, loss: Optional[OutputLoss] = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Return logits and extras as fairseq's model does, or the loss if ``loss`` is given.

        Args:
            args: the arguments of fairseq's model.
            loss: if given, the result is that of :meth:`OutputLoss.__call__`, the loss and its
                statistics, and the logits need not be kept.
            kwargs: the keyword arguments of fairseq's model.
        """
        if loss is None:
            return super().forward(*args, **kwargs)
        features, _ = self.extract_features(*args, **kwargs)
        return loss(self.decoder.output_projection, features)

    def __prepare_scriptable__(self):
        """Return a copy with fairseq's own ``forward``: TorchScript cannot compile the loss."""
        twin = copy.copy(self)
        twin.__class__ = type("Scriptable", (type(self),), {"forward": super().forward.__func__})
        return twin

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        """Same as in fairseq, except that TorchScript does not compile it."""
        return self.decoder.get_normalized_probs(net_output, log_probs, sample)

    def prepare_for_inference_(self, cfg) -> None:
        """Same as in fairseq, after :meth:`check_inference`."""
        projection = self.decoder.output_projection  # adaptive softmax has none
        if projection is not None and projection.is_sparse:
            self.check_inference(cfg, projection.transform.name)
        super().prepare_for_inference_(cfg)

    def check_inference(self, cfg: Any, transform: str) -> None:
        """Refuse to search under a task whose search cannot deal with probabilities of 0.

        Args:
            cfg: the settings of the command.
            transform: the output transform of the model.

        Raises:
            ValueError: naming the task, the transform and the flag to change.
        """
        if not getattr(cfg.generation, "score_reference", False):
            task = TASK_REGISTRY.get(getattr(cfg.task, "_name", None))
            check_search(task, cfg.task, transform, "decoding")

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, *args, **kwargs):
        """Same as in fairseq, after :meth:`check_checkpoint` if ``strict``."""
        if strict:
            self.check_checkpoint(state_dict)
        return super().load_state_dict(state_dict, strict, *args, **kwargs)

    def check_checkpoint(self, state_dict: dict[str, Tensor]) -> None:
        """Refuse the parameters of a model of another kind.

        Raises:
            ValueError: the checkpoint does not match the size of the dictionaries or the parameters
                of the attention, or has trained weights, although the tau of alpha-ReLU is to be
                estimated from untrained ones.
        """
        self._check_vocabulary(state_dict)
        _check_attention_parameters(self, state_dict)
        if self.decoder.output_projection is not None:
            self.decoder.output_projection.transform.check_start(state_dict)

    def _check_vocabulary(self, state_dict: dict[str, Tensor]) -> None:
        for name, parameter in self.named_parameters():
            part, _, rest = name.partition(".")
            theirs = state_dict.get(name, parameter)
            if rest == "embed_tokens.weight" and len(theirs) != len(parameter):
                raise ValueError(
                    f"the {part} of the checkpoint has a dictionary of {len(theirs)} tokens, but "
                    f"this dictionary has {len(parameter)}: give the folder of data, with its dict "
                    "files, that the model was trained on"
                )


def _check_attention_parameters(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Refuse parameters of another kind of attention.

    Raises:
        ValueError: naming them and the flag.
    """
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
        raise ValueError(
            f"the checkpoint has no {_sorted_list(missing)}, which {adds}: it was trained with "
            f"another attention. Its parameters fit --attention {plain} with a fixed alpha and "
            "without --attention-scale-queries; any other attention must be trained from scratch, "
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


def check_training(args: Any, task) -> None:
    """Refuse a criterion or a search in validation that does not fit ``--output-transform``.

    Raises:
        ValueError: naming the flags, and what to change.
    """
    transform = str(args.output_transform)
    check_criterion(criterion_name(args), transform)
    task_cfg = getattr(task, "cfg", None)
    if getattr(task_cfg, "eval_bleu", False):
        check_search(type(task), task_cfg, transform, "--eval-bleu")


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

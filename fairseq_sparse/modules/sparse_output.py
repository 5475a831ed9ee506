"""The mixins of this package's models: building, probabilities, loss and loading."""

import copy
from argparse import Namespace
from typing import Any, Optional, Union

from fairseq.modules import FairseqDropout
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig
from torch import Tensor

from fairseq_sparse.checkpoints.loading import check_settings
from fairseq_sparse.modules.flag_checks import check_overrides, check_search, check_training
from fairseq_sparse.modules.learned_alpha import log_learned_alpha
from fairseq_sparse.modules.model_settings import as_namespace
from fairseq_sparse.modules.output_projection import OutputLoss
from fairseq_sparse.modules.parameter_checks import check_parameters
from fairseq_sparse.modules.seeded_dropout import set_dropout, stock_name


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
        set_dropout(model)
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
            loss: if given, the result is that of :meth:`OutputProjection.loss`, the loss and its
                statistics, and the logits need not be kept. It must be computed in here: only in
                the forward pass do fairseq's distributed wrappers see which parameters are used,
                and does a sharded model have its weights.
            kwargs: the keyword arguments of fairseq's model.
        """
        if loss is None:
            return super().forward(*args, **kwargs)
        features, _ = self.extract_features(*args, **kwargs)
        return self.decoder.output_projection.loss(features, loss)

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
        """Same as in fairseq, after :meth:`check_inference`.

        Raises:
            ValueError: ``--model-overrides`` would change a threshold that was found in training.
        """
        projection = self.decoder.output_projection  # adaptive softmax has none
        if projection is not None and projection.is_sparse:
            self.check_inference(cfg, projection.transform.name)
            overrides = getattr(getattr(cfg, "common_eval", None), "model_overrides", "{}")
            check_overrides(overrides, projection.transform)
        super().prepare_for_inference_(cfg)
        self.check_dropout(cfg.generation)

    def check_dropout(self, generation: Any) -> None:
        """Refuse ``--retain-dropout-modules`` if the model has none of the named modules.

        Raises:
            ValueError: naming those that it has.
        """
        wanted = getattr(generation, "retain_dropout_modules", None)
        dropouts = [x for x in self.modules() if isinstance(x, FairseqDropout)]
        if (
            wanted
            and generation.retain_dropout
            and not any(x.apply_during_inference for x in dropouts)
        ):
            names = sorted(set(map(stock_name, dropouts)))
            raise ValueError(
                f"--retain-dropout-modules {wanted}: the model has none of them, but "
                f"{', '.join(names)}"
            )

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
        check_parameters(self, state_dict)
        if self.decoder.output_projection is not None:
            self.decoder.output_projection.transform.check_start(state_dict)

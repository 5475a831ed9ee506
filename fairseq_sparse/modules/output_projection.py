"""The last layer of a decoder: a linear map to the vocabulary, and its output transform."""

from typing import Any, Optional, Union

from torch import Tensor, nn

from fairseq_sparse.modules.output_transforms import DEFAULT_ALPHA, OUTPUT_TRANSFORMS


class OutputProjection(nn.Module):
    """A linear layer to the vocabulary, with its output transform.

    ``forward`` returns logits, like the layer that it replaces. The transform is the child
    ``transform``, which computes everything that depends on it, from probabilities to the loss.

    The layer is the child ``linear``; this class is no subclass of ``nn.Linear``. PyTorch's
    ``quantize_dynamic`` and fairseq's scalar quantiser look for layers of exactly that type and
    would overlook a subclass, while fairseq's product quantiser would replace a subclass by a layer
    without a transform. With a child, all of them replace the child only. The state-dict keys are
    still those of the wrapped layer, plus those that the transform saves.

    Args:
        linear: the layer to wrap; it is shared, not copied.
        transform: a key of ``OUTPUT_TRANSFORMS``.
        alpha: > 1, for ``entmax`` and ``alpha_relu``.
        topk: if > 0, sparsemax and entmax see only the ``topk`` largest logits.
        tau: for ``alpha_relu``, how tau is found (one of ``TAU_ESTIMATORS``), or its value; other
            transforms ignore it.

    Raises:
        ValueError: an option is out of range, or the transform takes no ``alpha`` or ``topk``.
    """

    def __init__(
        self,
        linear: nn.Linear,
        transform: str = "softmax",
        alpha: float = DEFAULT_ALPHA,
        topk: int = 0,
        tau: Union[str, float] = "weights",
    ):
        super().__init__()
        if transform not in OUTPUT_TRANSFORMS:
            raise ValueError(
                f"--output-transform {transform} is unknown; choose from "
                f"{', '.join(OUTPUT_TRANSFORMS)}"
            )
        self.linear = linear
        self.transform = OUTPUT_TRANSFORMS[transform](transform, alpha, topk, tau)
        self.is_sparse = self.transform.is_sparse
        # Whether the transform's log_probs() are those of a distribution: search adds them up.
        self.scores_are_log_probs = self.transform.sums_to_one

    @property
    def weight(self) -> Tensor:
        """The parameter ``[V, d]`` of the layer."""
        return self.linear.weight

    @property
    def bias(self) -> Optional[Tensor]:
        """The parameter ``[V]`` of the layer, if it has one."""
        return self.linear.bias

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits ``[..., V]`` of features ``[..., d]``."""
        return self.linear(features)

    def loss_of_features(self, features: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Return the transform's loss of ``linear(features)``, if possible without keeping the
        logits; for the options see :meth:`OutputTransform.loss`.

        A layer that is quantised or has hooks is called, so its logits are kept.
        """
        if self._is_plain():
            return self.transform.loss_of_features(features, self.linear, target, **options)
        return self.transform.loss(self.linear(features), target, **options)

    def _is_plain(self) -> bool:
        """Return whether the layer computes ``F.linear`` of its parameters and nothing else."""
        hooks = (self.linear._forward_pre_hooks, self.linear._forward_hooks)
        hooks += (self.linear._backward_pre_hooks, self.linear._backward_hooks)
        return type(self.linear) is nn.Linear and not any(hooks)

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """Return the state under the wrapped layer's own names, and the transform's."""
        state = super().state_dict(
            *args, destination=destination, prefix=prefix, keep_vars=keep_vars
        )
        for part in ("linear", "transform"):
            for key in [key for key in state if key.startswith(f"{prefix}{part}.")]:
                state[prefix + key[len(f"{prefix}{part}.") :]] = state.pop(key)
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args) -> None:
        of_transforms = {name for kind in OUTPUT_TRANSFORMS.values() for name in kind.saved}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key[len(prefix) :]
            part = "transform" if name in of_transforms else "linear"
            state_dict[f"{prefix}{part}.{name}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

"""The last layer of a decoder: a linear map to the vocabulary, and its output transform."""

from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from fairseq_sparse.modules.output_transforms import DEFAULT_ALPHA, OUTPUT_TRANSFORMS
from fairseq_sparse.ops.mappings import TOPK

# Number of positions of a training batch that the statistics use: using all of them would cost as
# much as the loss. Validation uses all.
TRAINING_STATISTICS_TOKENS = 64


@dataclass(frozen=True)
class OutputLoss:
    """The targets of a batch and the options of their loss, for ``model(..., loss=...)``.

    Attributes:
        target: tokens ``[batch, length]``.
        padding: the padding token, which is ignored.
        label_smoothing: epsilon of the targets ``(1 - epsilon) e_y + epsilon u``.
        prior: the distribution u, ``[V]``; None if it is uniform.
        reduction: ``sum``, or ``none`` for a loss of each position.
        fused: whether a training loss is computed without keeping the logits, if possible.
        epsilon: the epsilon of the eps-perplexity; None if no language-model measures are wanted.
    """

    target: Tensor
    padding: int
    label_smoothing: float = 0.0
    prior: Optional[Tensor] = None
    reduction: str = "sum"
    fused: bool = True
    epsilon: Optional[float] = None


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
        algorithm, topk: how sparsemax and entmax find their threshold, see
            :func:`fairseq_sparse.ops.entmax`; other transforms ignore ``topk``.
        tau: for ``alpha_relu``, how tau is found (one of ``TAU_ESTIMATORS``), or its value; other
            transforms ignore it.

    Raises:
        ValueError: an option is out of range, or the transform takes no ``alpha`` or ``algorithm``.
    """

    def __init__(
        self,
        linear: nn.Linear,
        transform: str = "softmax",
        alpha: float = DEFAULT_ALPHA,
        algorithm: str = "newton",
        topk: int = TOPK,
        tau: Union[str, float] = "weights",
    ):
        super().__init__()
        if transform not in OUTPUT_TRANSFORMS:
            raise ValueError(
                f"--output-transform {transform} is unknown; choose from "
                f"{', '.join(OUTPUT_TRANSFORMS)}"
            )
        self.linear = linear
        self.transform = OUTPUT_TRANSFORMS[transform](
            transform, alpha=alpha, algorithm=algorithm, topk=topk, tau=tau
        )
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

    def loss(self, features: Tensor, options: OutputLoss) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of features ``[batch, length, d]``, and sums over the target tokens.

        In training, a transform without a tau finds it first. The logits are kept in evaluation,
        and where the layer is quantised or has hooks, because it must then be called.

        Returns:
            The loss in nats, and the sums of :meth:`OutputTransform.statistics`, in training of a
            sample of the positions; in evaluation also the numbers of ``sentences`` and of
            ``correct_sentences``, in which every target token has the largest logit.
        """
        features = features.reshape(-1, features.size(-1))  # [batch * length, d]
        target, padding = options.target.reshape(-1), options.padding
        of_loss: dict[str, Any] = {
            "label_smoothing": options.label_smoothing,
            "ignore_index": padding,
            "reduction": options.reduction,
        }
        if options.prior is not None:
            of_loss["prior"] = options.prior
        if self.training:
            self.transform.prepare(self, features, target, padding)
        rows = _some_rows(target) if self.training else slice(None)
        if self.training and options.fused and self._is_plain():
            with torch.no_grad():
                logits = self(features[rows])
            weight, bias = self.weight, self.bias
            loss = self.transform.linear_loss(features, weight, bias, target, **of_loss)
        else:
            logits = self(features)
            loss = self.transform.loss(logits, target, **of_loss)
            logits = logits.detach()[rows]
        statistics = self.transform.statistics(logits, target[rows], padding, options.epsilon)
        if not self.training:
            correct = logits.argmax(-1).eq(target) | target.eq(padding)
            # --pad-to-fixed-bsz adds rows of padding alone.
            is_sentence = options.target.ne(padding).any(dim=1)
            all_correct = correct.view_as(options.target).all(dim=1)
            statistics["correct_sentences"] = (all_correct & is_sentence).sum()
            statistics["sentences"] = is_sentence.sum()
        return loss, statistics

    def _is_plain(self) -> bool:
        """Return whether the layer computes ``F.linear`` of its parameters and nothing else."""
        kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
        hooked = any(getattr(layer, kind) for layer in (self, self.linear) for kind in kinds)
        return type(self.linear) is nn.Linear and not hooked

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


def _some_rows(target: Tensor) -> Tensor:
    """Return the positions that the statistics of a training batch are taken from."""
    # Not every n-th: n could be the length of a sentence, and all would be first tokens.
    count = min(target.size(0), TRAINING_STATISTICS_TOKENS)
    # Not in the default dtype: half precision would round the last position up.
    exact = {"dtype": torch.float64, "device": target.device}
    return torch.linspace(0, target.size(0) - 1, count, **exact).long()

"""The loss and the logged statistics of a batch, which a model computes in its forward pass."""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_sparse.modules.output_projection import OutputProjection

# Number of positions of a training batch that the statistics use: using all of them would cost as
# much as the loss. Validation uses all.
TRAINING_STATISTICS_TOKENS = 64


@dataclass(frozen=True)
class OutputLoss:
    """The targets of a batch and the options of their loss, for ``model(..., loss=...)``.

    The model calls it inside its forward pass: only there do fairseq's distributed wrappers see
    which parameters are used, and only there does a sharded model have its weights.

    Attributes:
        target: tokens ``[batch, length]``.
        padding: the padding token, which is ignored.
        label_smoothing: epsilon of the targets ``(1 - epsilon) e_y + epsilon / V``.
        reduction: ``sum``, or ``none`` for a loss of each position.
        fused: whether a sparse transform computes its training loss without keeping the logits.
        epsilon: the epsilon of the eps-perplexity; None if no language-model measures are wanted.
    """

    target: Tensor
    padding: int
    label_smoothing: float = 0.0
    reduction: str = "sum"
    fused: bool = True
    epsilon: Optional[float] = None

    def __call__(
        self, projection: OutputProjection, features: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of features ``[batch, length, d]``, and sums over the target tokens.

        In training, a model without a tau finds it first.

        Returns:
            The loss in nats, and the sums of :meth:`OutputTransform.statistics`; in evaluation
            also ``correct_sentences``, the number of sentences in which every target token has the
            largest logit.
        """
        features = features.reshape(-1, features.size(-1))  # [batch * length, d]
        target = self.target.reshape(-1)
        options: dict[str, Any] = {
            "label_smoothing": self.label_smoothing,
            "ignore_index": self.padding,
            "reduction": self.reduction,
        }
        if not projection.training:
            logits = projection(features)
            statistics = self._statistics(projection, logits.detach(), target)
            statistics["correct_sentences"] = self._correct_sentences(logits)
            return projection.transform.loss(logits, target, **options), statistics
        projection.transform.prepare(projection, features, target, self.padding)
        rows = _some_rows(target)
        if self.fused and projection.is_sparse:
            with torch.no_grad():
                sample = projection(features[rows])
            loss = projection.loss_of_features(features, target, **options)
        else:
            logits = projection(features)
            sample = logits.detach()[rows]
            loss = projection.transform.loss(logits, target, **options)
        return loss, self._statistics(projection, sample, target[rows])

    def _statistics(
        self, projection: OutputProjection, logits: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        return projection.transform.statistics(logits, target, self.padding, self.epsilon)

    def _correct_sentences(self, logits: Tensor) -> Tensor:
        """Return the number of sentences in which every target token has the largest logit."""
        correct = logits.argmax(-1).view_as(self.target).eq(self.target)
        return (correct | self.target.eq(self.padding)).all(dim=1).sum()


def _some_rows(target: Tensor) -> Tensor:
    """Return the positions that the statistics of a training batch are taken from."""
    # Not every n-th: n could be the length of a sentence, and all would be first tokens.
    count = min(target.size(0), TRAINING_STATISTICS_TOKENS)
    # Not in the default dtype: half precision would round the last position up.
    exact = {"dtype": torch.float64, "device": target.device}
    return torch.linspace(0, target.size(0) - 1, count, **exact).long()

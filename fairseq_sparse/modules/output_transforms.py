"""The output transforms: each maps logits to probabilities, and has the loss that trains it.

This is the counterpart of ``attention_kinds.py``. A new transform needs a subclass of
:class:`OutputTransform` and an entry in ``OUTPUT_TRANSFORMS``, which flags, criterions, checks,
search and analysis use.
"""

import logging
import math
from collections.abc import Collection, Iterable
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_sparse.modules.constant_tau import ConstantTau
from fairseq_sparse.modules.lm_measures import lm_measures
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    entmax,
    entmax_loss,
    entmax_threshold,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    log_alpha_relu,
    log_entmax,
)
from fairseq_sparse.ops.checks import check_algorithm, check_alpha
from fairseq_sparse.ops.mappings import TOPK, entmax_and_threshold
from fairseq_sparse.ops.precision import at_least_fp32

logger = logging.getLogger(__name__)

DEFAULT_ALPHA = 1.5


class OutputTransform(nn.Module):
    """A mapping from logits ``[..., V]`` to probabilities, with its loss.

    A subclass must define :meth:`probs` and :meth:`loss`. It may override the other methods with
    faster ones, and describes the transform by class attributes:

    Attributes:
        criterion: the ``--criterion`` that trains it.
        is_sparse: whether a token can have probability exactly 0.
        sums_to_one: whether :meth:`probs` sum to 1.
        takes_alpha, takes_algorithm, takes_tau: whether it uses ``--output-alpha``,
            ``--output-algorithm`` and ``--output-topk``, ``--output-tau``.
        alpha: its alpha, if it has a fixed one.
        saved: names of its buffers and parameters that are saved in checkpoints.

    Args:
        name: its key in ``OUTPUT_TRANSFORMS``.
        alpha: > 1, for transforms that take it.
        algorithm, topk: how the threshold is found, for transforms whose threshold depends on the
            logits; see :func:`fairseq_sparse.ops.entmax`.
        tau: the threshold, or how it is found, for transforms with a constant one.

    Raises:
        ValueError: an option is out of range, or the transform takes no ``alpha`` or ``algorithm``.
    """

    criterion = "entmax_loss"
    is_sparse = True
    sums_to_one = True
    takes_alpha = takes_algorithm = takes_tau = False
    alpha: Optional[float] = None
    saved: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        alpha: float = DEFAULT_ALPHA,
        algorithm: str = "newton",
        topk: int = TOPK,
        tau: Union[str, float] = "weights",
    ):
        super().__init__()
        self.name = name
        self._check_alpha(alpha)
        if self.takes_alpha:
            self.alpha = alpha
        self._check_algorithm(algorithm, topk)
        self.search = {"algorithm": algorithm, "topk": topk}

    def probs(self, logits: Tensor) -> Tensor:
        """Return the probabilities, in fp32 or better."""
        raise NotImplementedError

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the logarithm of :meth:`probs`, exactly -inf where that is 0."""
        return self.probs(logits).log()

    def at_temperature(self, logits: Tensor, temperature: float) -> Tensor:
        """Return logits whose probabilities are those of ``logits`` at a temperature.

        This is ``logits / temperature``, in fp32 or better. A subclass whose probabilities change
        when a constant is added to all logits must override it.
        """
        return at_least_fp32(logits) / temperature

    def entry_temperature(self, logits: Tensor, token: Tensor) -> Tensor:
        """Return the temperature above which a token has nonzero probability, and up to which not.

        Args:
            logits: ``[rows, V]``.
            token: one token of each row, ``[rows]``.

        Returns:
            ``[rows]``, fp32 or better; 0 for the largest logit, which is always possible.

        Raises:
            ValueError: the transform does not define it.
        """
        raise ValueError(f"--output-transform {self.name} does not define entry_temperature()")

    def loss(self, logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Return the loss in nats.

        Args:
            logits: ``[rows, V]``.
            target: ``[rows]``.
            options: ``label_smoothing``, ``ignore_index`` and ``reduction``, and ``prior`` if it
                is not uniform, as :func:`fairseq_sparse.ops.entmax_loss` has them.
        """
        raise NotImplementedError

    def linear_loss(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        **options: Any,
    ) -> Tensor:
        """Return the :meth:`loss` of the logits ``F.linear(features, weight, bias)``.

        A subclass that need not keep the logits can override this to save time and memory.
        """
        return self.loss(F.linear(features, weight, bias), target, **options)

    def probs_and_threshold(self, logits: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Return :meth:`probs` of logits ``[rows, V]``, and each row's threshold if it has one."""
        return self.probs(logits), None

    @torch.no_grad()
    def statistics(
        self, logits: Tensor, target: Tensor, ignore_index: int, epsilon: Optional[float] = None
    ) -> dict[str, Tensor]:
        """Return sums over the target tokens that measure how sparse and accurate the output is.

        Args:
            logits: ``[rows, V]``.
            target: ``[rows]``; rows where it is ``ignore_index`` do not count.
            epsilon: the epsilon of the eps-perplexity; None for no language-model measures.

        Returns:
            Scalars: ``tokens`` (the number of rows that count) and, summed over these, ``correct``
            (the gold token has the largest logit), ``nonzeros``, ``gold_zero`` (the gold token has
            probability 0), ``prob_sum``, ``logit_norm`` (Euclidean), ``tau`` if there is a
            threshold, and with *epsilon* ``sparsemax_score``, ``js_divergence`` and ``eps_nll`` of
            :func:`lm_measures` and ``nll``, the negative log-likelihood for the perplexity,
            smoothed by epsilon if the transform is sparse. Nothing is synchronised, but by the
            algorithm ``partial``.
        """
        counts = target != ignore_index
        p, threshold = self.probs_and_threshold(logits)
        known = target.masked_fill(~counts, 0)
        gold = p.gather(-1, known.unsqueeze(-1)).squeeze(-1)
        values = {
            "tokens": torch.ones_like(gold),
            "correct": logits.argmax(-1) == target,
            "nonzeros": (p > 0).sum(-1),
            "gold_zero": gold == 0,
            "prob_sum": p.sum(-1),
            "logit_norm": torch.linalg.vector_norm(logits, dim=-1, dtype=p.dtype),
        }
        if threshold is not None:
            values["tau"] = threshold
        if epsilon is not None:
            measures = lm_measures(p, known, epsilon)
            del measures["gold"]
            values |= measures
            values["nll"] = measures["eps_nll"]
            if not self.is_sparse:
                values["nll"] = -self.log_probs(logits).gather(-1, known.unsqueeze(-1)).squeeze(-1)
        # No boolean index: it would stall a GPU.
        return {
            name: value.double().masked_fill(~counts, 0.0).sum() for name, value in values.items()
        }

    def prepare(
        self,
        projection: nn.Module,
        features: Tensor,
        target: Tensor,
        ignore_index: int,
    ) -> None:
        """Find what the transform needs to know before the first update.

        Every worker of a distributed run must call this with its own first batch.

        Args:
            projection: the output layer, with its ``weight`` ``[V, d]``; it returns logits.
            features: those of the first batch, ``[rows, d]``.
            target: ``[rows]``; rows where it is ``ignore_index`` do not count.
        """

    def check_start(self, names: Collection[str]) -> None:
        """Refuse to start from a checkpoint with entries of these names if it does not fit.

        Raises:
            ValueError: naming the flag and the remedy.
        """

    def describe(self) -> str:
        """Return the name, with the options that distinguish transforms of this name."""
        return f"{self.name} (α {self.alpha:g})" if self.takes_alpha else self.name

    def _check_alpha(self, alpha: float) -> None:
        if self.takes_alpha:
            try:
                check_alpha(alpha, torch.float32)
            except ValueError as error:
                raise ValueError(f"--output-alpha: {error}") from None
        elif alpha not in (DEFAULT_ALPHA, self.alpha):
            fixed = "no alpha" if self.alpha is None else f"alpha = {self.alpha}"
            raise ValueError(
                f"--output-transform {self.name} has {fixed}, so --output-alpha {alpha} has no "
                "effect; use --output-transform "
                f"{_join_with(transforms_with('takes_alpha'), 'or')}, or leave --output-alpha out"
            )

    def _check_algorithm(self, algorithm: str, topk: int) -> None:
        if self.takes_algorithm:
            try:
                check_algorithm(algorithm, self.alpha, topk)
            except ValueError as error:
                flags = f"--output-algorithm {algorithm}, --output-topk {topk}"
                raise ValueError(f"{flags}: {error}") from None
        elif algorithm != "newton":
            takers = _join_with(transforms_with("takes_algorithm"), "and")
            raise ValueError(
                f"--output-algorithm {algorithm} is for {takers}; --output-transform {self.name} "
                "takes none, leave it out"
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args) -> None:
        for other, kind in OUTPUT_TRANSFORMS.items():
            for name in set(kind.saved) - set(self.saved):
                value = state_dict.pop(prefix + name, None)
                if value is not None:
                    shown = f" ({value.item():.6f})" if value.numel() == 1 else ""
                    logger.info(
                        f"{name} of {other}{shown} in the checkpoint is left out: "
                        f"--output-transform {self.name} has none"
                    )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return self.name if self.alpha is None else f"{self.name}, alpha={self.alpha}"


class Entmax(OutputTransform):
    """alpha-entmax, trained by its Fenchel-Young loss."""

    takes_alpha = takes_algorithm = True

    def probs(self, logits: Tensor) -> Tensor:
        return entmax(at_least_fp32(logits), self.alpha, **self.search)

    def log_probs(self, logits: Tensor) -> Tensor:
        return log_entmax(logits, self.alpha, **self.search)

    def entry_temperature(self, logits: Tensor, token: Tensor) -> Tensor:
        return _entmax_entry(at_least_fp32(logits), token, self.alpha)

    def loss(self, logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        return entmax_loss(logits, target, self.alpha, **self.search, **options)

    def linear_loss(self, features, weight, bias, target, **options: Any) -> Tensor:
        return linear_entmax_loss(
            features, weight, bias, target, self.alpha, **self.search, **options
        )

    def probs_and_threshold(self, logits: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        return entmax_and_threshold(at_least_fp32(logits), self.alpha, **self.search)


class Softmax(Entmax):
    """alpha-entmax with alpha = 1, trained by cross-entropy."""

    is_sparse = False
    takes_alpha = takes_algorithm = False
    alpha = 1.0

    def probs_and_threshold(self, logits: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        return self.probs(logits), None

    def entry_temperature(self, logits: Tensor, token: Tensor) -> Tensor:
        return at_least_fp32(logits).new_zeros(token.shape)


class Sparsemax(Entmax):
    """alpha-entmax with alpha = 2."""

    takes_alpha = False
    alpha = 2.0


class Entmax15(Entmax):
    """alpha-entmax with alpha = 1.5."""

    takes_alpha = False
    alpha = 1.5


class AlphaReLU(ConstantTau, OutputTransform):
    """alpha-ReLU, whose threshold tau is a constant of the model."""

    criterion = "alpha_relu_loss"
    sums_to_one = False
    takes_alpha = True

    def probs(self, logits: Tensor) -> Tensor:
        """Return the weights, which need not sum to 1."""
        return alpha_relu(at_least_fp32(logits), self.known_tau(), self.alpha)

    def log_probs(self, logits: Tensor) -> Tensor:
        return log_alpha_relu(logits, self.known_tau(), self.alpha)

    def at_temperature(self, logits: Tensor, temperature: float) -> Tensor:
        """Return ``logits / temperature`` plus a constant per row that keeps its sum of weights.

        With the sum s at T = 1, the weights are ``s * entmax(z / (T s ** (alpha - 1)))``. So they
        approach ``s * one_hot(argmax(z))`` as T -> 0, and their support grows with T, as that of
        entmax does. A row whose weights are all 0 stays so.
        """
        z = at_least_fp32(logits)
        total = self.probs(z).sum(-1, keepdim=True)
        scale = total ** (self.alpha - 1)
        # From the maximum, because z / T can be so large that adding anything changes nothing.
        z = (z - z.amax(-1, keepdim=True)) / temperature
        threshold = entmax_threshold(z / scale, self.alpha).unsqueeze(-1)
        z = z + (self.known_tau() - scale * threshold) / (self.alpha - 1)
        return z.masked_fill(total == 0, -math.inf)

    def entry_temperature(self, logits: Tensor, token: Tensor) -> Tensor:
        """As that of entmax, divided by ``s ** (alpha - 1)`` (see :meth:`at_temperature`); infinite
        in a row whose weights are all 0."""
        z = at_least_fp32(logits)
        total = self.probs(z).sum(-1)
        entry = _entmax_entry(z, token, self.alpha) / total ** (self.alpha - 1)
        return entry.masked_fill(total == 0, math.inf)

    def loss(self, logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        return alpha_relu_loss(logits, target, self.known_tau(), self.alpha, **options)

    def linear_loss(self, features, weight, bias, target, **options: Any) -> Tensor:
        tau = self.known_tau()
        return linear_alpha_relu_loss(features, weight, bias, target, tau, self.alpha, **options)

    def probs_and_threshold(self, logits: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        p = self.probs(logits)
        return p, self.tau.expand(p.shape[:-1])

    def describe(self) -> str:
        return f"{self.name} (α {self.alpha:g}, τ {self.tau.item():.3g})"


OUTPUT_TRANSFORMS: dict[str, type[OutputTransform]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "entmax": Entmax,
    "alpha_relu": AlphaReLU,
}


def transforms_with(attribute: str, value: Any = True) -> list[str]:
    """Return the names of the transforms with this value of a class attribute."""
    return [name for name, kind in OUTPUT_TRANSFORMS.items() if getattr(kind, attribute) == value]


def _entmax_entry(z: Tensor, token: Tensor, alpha: float) -> Tensor:
    """Return ``(alpha - 1) * norm([z - z_token]_+)``, the norm of order ``1 / (alpha - 1)``.

    A token is in the support at temperature T if and only if the threshold at which its own
    probability is 0 would leave the others a sum below 1: ``sum([(alpha - 1) (z - z_token) /
    T]_+ ** (1 / (alpha - 1))) < 1``.
    """
    own = z.gather(-1, token.unsqueeze(-1))
    gap = (z - own).clamp(min=0)
    # Divided by the largest gap, because a power of high order could overflow.
    largest = gap.amax(-1, keepdim=True)
    share = gap / largest.masked_fill(largest == 0, 1.0)
    norm = (share ** (1 / (alpha - 1))).sum(-1) ** (alpha - 1)
    entry = (alpha - 1) * largest.squeeze(-1) * norm
    # The distance of -inf from itself is NaN; a token that is masked is possible at no temperature.
    return entry.masked_fill(own.squeeze(-1).isneginf(), math.inf)


def _join_with(names: Iterable[str], conjunction: str) -> str:
    *most, last = names
    return f"{', '.join(most)} {conjunction} {last}" if most else last

"""The threshold of an output transform, if it is a constant of the model."""

import logging
import math
from collections.abc import Collection
from typing import Any, Union

import torch
import torch.distributed
from torch import Tensor, nn

from fairseq_sparse.ops import entmax_threshold, tau_from_formula, tau_from_weights
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.tau import logit_variance, xavier_variance

logger = logging.getLogger(__name__)

TAU_ESTIMATORS = ("data", "formula", "weights")


class ConstantTau:
    """Mixin, placed before ``OutputTransform``, for a transform with a constant threshold ``tau``.

    ``tau`` is a buffer that stays in fp32 whatever the model's dtype. Unless given as a number, it
    is NaN until :meth:`prepare` finds it or a checkpoint that has one is loaded.

    Args:
        tau: how tau is found, one of ``TAU_ESTIMATORS``, or its value.

    Raises:
        ValueError: tau is neither, or its estimator does not hold for the alpha.
    """

    takes_tau = True
    saved = ("tau",)

    def __init__(self, *args: Any, tau: Union[str, float] = "weights", **options: Any):
        super().__init__(*args, **options)
        self.estimator, value = _parse_tau(tau, self.alpha)
        self.register_buffer("tau", torch.tensor(value, dtype=torch.float32))
        self._given_tau = torch.tensor(value, dtype=torch.float32, device="cpu").item()
        self._tau_is_known = math.isfinite(value)
        self._tau_is_announced = False

    def known_tau(self) -> Tensor:
        """Return tau.

        Raises:
            RuntimeError: it is not known yet.
        """
        if not self._tau_is_known and not self._tau_is_finite():
            raise RuntimeError(
                f"tau of {self.name} is not set: it is found in the first training step "
                f"(--output-tau {self.estimator}), given as a number (--output-tau 1.4), or "
                "loaded from a checkpoint of such a model"
            )
        return self.tau

    def _tau_is_finite(self) -> bool:
        """Return whether tau is finite. It synchronises, so it is not called once tau is known."""
        self._tau_is_known = bool(torch.isfinite(self.tau))
        return self._tau_is_known

    @torch.no_grad()
    def prepare(
        self,
        projection: nn.Module,
        features: Tensor,
        target: Tensor,
        ignore_index: int,
    ) -> None:
        """Set tau by the chosen estimator, and log it.

        A tau that was given, found or loaded is kept. All workers get the same tau: the mean of
        their estimates, weighted by their target tokens.
        """
        if self._tau_is_announced:
            return
        if not self._tau_is_finite():
            found = self._estimate(projection, features[target != ignore_index])
            source = f"--output-tau {self.estimator}, {found}"
        elif self._given_tau == self.tau.item():
            source = "given by --output-tau"
        else:
            source = "from the checkpoint; --output-tau is ignored"
        self._tau_is_announced = True  # not before: an estimate that ran out of memory is repeated
        if not _is_distributed() or torch.distributed.get_rank() == 0:
            logger.info("tau of %s: %.6f (%s)", self.name, self.tau.item(), source)

    def _estimate(self, projection: nn.Module, features: Tensor) -> str:
        """Set tau to the workers' mean estimate and say how it was found."""
        count = len(features)
        total = torch.tensor([0.0, count], dtype=torch.float64)
        if count and self.estimator == "data":
            total[0] = entmax_threshold(projection(features), self.alpha).double().sum()
        elif count:
            mean_square = at_least_fp32(features).pow(2).mean().item()
            total[0] = count * self._estimate_from_weights(projection.weight, mean_square)
        total = total.to(self.tau.device)
        if _is_distributed():
            torch.distributed.all_reduce(total)
        self.tau.copy_(total[0] / total[1])
        if not self._tau_is_finite():
            raise ValueError(
                f"--output-tau {self.estimator} gave tau = {self.tau.item()}: the first batch "
                "has no target token, or features or weights are not finite"
            )
        return {
            "data": f"the mean threshold over {int(total[1])} target tokens of the first batch",
            "formula": "Lemmas 2 and 3 of 'Speeding Up Entmax', for Xavier-uniform weights",
            "weights": "the mean-field threshold for the spread of the untrained logits",
        }[self.estimator]

    def _estimate_from_weights(self, weight: Tensor, mean_square: float) -> float:
        """Return tau for the untrained output layer and features of this mean square."""
        if self.estimator == "weights":
            return tau_from_weights(weight, self.alpha, mean_square)
        vocab_size, d_model = weight.shape
        assumed = xavier_variance(d_model, vocab_size)
        variance = logit_variance(weight, mean_square)
        if not 0.8 < variance / assumed < 1.25:
            logger.warning(
                "--output-tau formula assumes logits of variance %.2g, those of Xavier-uniform "
                "weights, but these are of %.2g: use --output-tau weights, or --output-init "
                "xavier_uniform",
                assumed,
                variance,
            )
        return tau_from_formula(d_model, vocab_size, alpha=self.alpha)

    def check_start(self, names: Collection[str]) -> None:
        """Refuse to estimate tau from weights that have been trained.

        ``formula`` and ``weights`` are valid only for untrained weights. Training makes the logits
        of a softmax model larger and far from independent, so their thresholds must be measured.

        Raises:
            ValueError: naming the flag and the remedy.
        """
        has_tau = any(name.endswith(".tau") for name in names)
        if self.estimator in ("formula", "weights") and not has_tau:
            raise ValueError(
                f"--output-tau {self.estimator} holds for untrained weights only, but those "
                "of this model come from a checkpoint, which has no tau: use --output-tau data, "
                "which measures the thresholds of the loaded model, or a number"
            )

    def _apply(self, fn, *args, **kwargs):
        # half() and similar methods must not round tau.
        tau: Tensor = self._buffers["tau"]
        super()._apply(fn, *args, **kwargs)
        device = self._buffers["tau"].device
        if tau.is_meta and device.type != "meta":  # to_empty() of a model built on meta
            tau = torch.tensor(self._given_tau, dtype=torch.float32, device=device)
        self._buffers["tau"] = tau.to(device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args) -> None:
        # A checkpoint of another transform has no tau, one from before training has NaN.
        theirs = state_dict.get(f"{prefix}tau")
        is_known = theirs is not None and not theirs.isnan()
        state_dict[f"{prefix}tau"] = theirs.float() if is_known else self.tau
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._tau_is_known |= is_known and math.isfinite(theirs)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _parse_tau(tau: Union[str, float], alpha: float) -> tuple[str, float]:
    """Return the estimator ("" for a given number) and the value (NaN until it is found)."""
    if tau in TAU_ESTIMATORS:
        if tau == "formula" and alpha != 1.5:
            raise ValueError(
                f"--output-tau formula holds for --output-alpha 1.5 alone, got {alpha}; "
                "use --output-tau weights, which holds for any alpha"
            )
        return str(tau), math.nan
    try:
        value = float(tau)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"--output-tau must be {', '.join(TAU_ESTIMATORS)} or a finite number, got {tau!r}"
        )
    return "", value

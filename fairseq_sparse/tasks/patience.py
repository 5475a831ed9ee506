"""The validations that ``--patience`` counts, which a resumed training still knows."""

import sys
from argparse import Namespace
from typing import Any, Optional

from fairseq.dataclass.configs import CheckpointConfig

_KEY = "validations"


class RemembersValidations:
    """Mixin that lets a resumed training stop where an uninterrupted one does; list it before the
    task's class.

    fairseq counts the validations for ``--patience`` in memory only. So their values of
    ``--best-checkpoint-metric`` are kept among the optimizer's options (see :class:`EnergyMeter`
    for the reason), and fairseq's own function is called with them again after a resumption.
    As for the best checkpoint, ``--reset-optimizer`` and ``--reset-meters`` forget them.
    """

    # fairseq's settings of checkpoints; here their defaults.
    checkpoint_settings: Any = CheckpointConfig()
    # The metric and its values so far; None before the first update.
    validations: Optional[dict[str, list[float]]] = None

    def train_step(self, sample, model, criterion, optimizer, *args, **kwargs):
        options: dict[str, Any] = next(iter(optimizer.param_groups))
        if self.validations is None:
            settings = self.checkpoint_settings
            earlier = {} if settings.reset_meters else options.get(_KEY, {})
            metric = settings.best_checkpoint_metric
            self.validations = {metric: earlier.get(metric, [])}
            _count_again(self.validations[metric], settings)
        options[_KEY] = self.validations
        return super().train_step(sample, model, criterion, optimizer, *args, **kwargs)

    def begin_valid_epoch(self, epoch, model):
        super().begin_valid_epoch(epoch, model)
        self.is_first_subset = True

    def post_validate(self, model, stats: dict[str, Any], agg) -> None:
        """Remember the value that chooses the best checkpoint: that of the first subset.

        Raises:
            ValueError: validation does not log ``--best-checkpoint-metric``.
        """
        for metric, values in (self.validations or {}).items():
            if metric not in stats:
                raise ValueError(
                    f"--best-checkpoint-metric {metric}: validation does not log it; choose from "
                    f"{', '.join(sorted(stats))}"
                )
            if self.is_first_subset:
                values.append(float(stats[metric]))
        self.is_first_subset = False
        if hasattr(super(), "post_validate"):
            super().post_validate(model, stats, agg)


def _count_again(values: list[float], settings: Any) -> None:
    """Let fairseq count the validations of an earlier part of the run."""
    for module in ("__main__", "fairseq_cli.train"):  # python -m, or fairseq-train
        stops_early = getattr(sys.modules.get(module), "should_stop_early", None)
        if stops_early is not None:
            for value in values:
                stops_early(Namespace(checkpoint=settings), value)

"""``--lr-scheduler reduce_lr_on_valid_loss``: the plateau schedule, on the validation loss."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
import copy
import math
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.optim.lr_scheduler import register_lr_scheduler
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import (
    ReduceLROnPlateauLRSchedule,
    ReduceLROnPlateauLRScheduleConfig,
)


@dataclass
class ReduceLROnValidLossConfig(ReduceLROnPlateauLRScheduleConfig):
    lr_compare_with: ChoiceEnum(["best", "previous"]) = field(
        default="best",
        metadata={
            "help": "when the learning rate shrinks: if the validation loss is not below the best "
            "so far by --lr-threshold ('best'), or if it is above that of the previous validation "
            "('previous'), as in 'Sparse Sequence-to-Sequence Models'"
        },
    )


@register_lr_scheduler("reduce_lr_on_valid_loss", dataclass=ReduceLROnValidLossConfig)
class ReduceLROnValidLossSchedule(ReduceLROnPlateauLRSchedule):
    """fairseq's ``reduce_lr_on_plateau``, with the same flags, except that

    - it follows the validation loss, where stock follows ``--best-checkpoint-metric``. So the rate
      can be halved when the loss rises, while accuracy chooses the best checkpoint ("Sparse
      Sequence-to-Sequence Models"). The loss is the mean over all validation data;
    - it follows every validation, where stock follows only the one at the end of an epoch. After a
      validation within an epoch (``--validate-interval-updates``), the new rate holds from the
      second update on, because fairseq asks for the rate of an update before it validates;
    - the loss may be compared with the previous one (``--lr-compare-with``);
    - a resumed run continues like an uninterrupted one. Stock forgets the validation before the
      checkpoint, and the number of bad epochs counted for ``--lr-patience``.
    """

    def __init__(self, cfg: ReduceLROnValidLossConfig, optimizer):
        if not 0 < cfg.lr_shrink < 1:
            raise ValueError(f"--lr-shrink must lie between 0 and 1, got {cfg.lr_shrink}")
        if cfg.lr_patience < 0:
            raise ValueError(f"--lr-patience must be at least 0, got {cfg.lr_patience}")
        cfg = copy.deepcopy(cfg)
        cfg.maximize_best_checkpoint_metric = False
        super().__init__(cfg, optimizer)
        self.epoch = self.num_updates = 0
        # The loss of the validation right before the loaded checkpoint, if not yet used.
        self.pending: Optional[float] = None

    def state_dict(self) -> dict[str, Any]:
        # fairseq writes a checkpoint between a validation and the next call of this class.
        return {
            **super().state_dict(),
            "bad_epochs": self.lr_scheduler.num_bad_epochs,
            "epoch": self.epoch,
            "num_updates": self.num_updates,
            "valid_loss": self._new_loss(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.lr_scheduler.num_bad_epochs = state_dict.get("bad_epochs", 0)
        self.epoch = state_dict.get("epoch", 0)
        self.num_updates = state_dict.get("num_updates", 0)
        self.pending = state_dict.get("valid_loss")

    def step_begin_epoch(self, epoch: int) -> None:
        # A run that resumes within an epoch must use the last validation when an uninterrupted one
        # does: after the next update.
        if epoch > self.epoch:
            self._use_validation(self.epoch)
            self.epoch = epoch

    def step(self, epoch: int, val_loss: Optional[float] = None) -> float:
        """Update the learning rate after an epoch. fairseq calls this on loading, too, with the
        epoch to come, before it compares the rate with ``--stop-min-lr``.

        *val_loss* is a value of ``--best-checkpoint-metric``, or None if there was no validation;
        the value itself is not used.
        """
        if val_loss is None and epoch <= self.epoch:
            return super().step(epoch)
        return self._use_validation(self.epoch)

    def step_update(self, num_updates: int) -> float:
        """Update the learning rate after an update, which may follow a validation."""
        if num_updates > self.num_updates:
            self.num_updates = num_updates
            self._use_validation(self.epoch)
        return super().step_update(num_updates)

    def _use_validation(self, epoch: int) -> float:
        """Shrink the learning rate if there was a bad validation since the last call; return it."""
        loss = self._new_loss()
        if loss is None:
            return self.optimizer.get_lr()
        self.pending = None
        metrics.reset_meters("valid")
        if str(self.cfg.lr_compare_with) == "best":
            return super().step(epoch, loss)
        plateau = self.lr_scheduler
        plateau.best = -math.inf if loss > plateau.best else math.inf
        rate = super().step(epoch, loss)
        plateau.best = loss  # the next loss is compared with this one
        return rate

    def _new_loss(self) -> Optional[float]:
        """Return the mean loss of the last validation that has not been used yet, or None."""
        meter = metrics.get_meter("valid", "loss")
        if meter is None or not meter.count:
            return self.pending
        return float(meter.sum / meter.count)

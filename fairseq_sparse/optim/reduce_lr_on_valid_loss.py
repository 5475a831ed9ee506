"""``--lr-scheduler reduce_lr_on_valid_loss``: the plateau schedule, on the validation loss."""

import copy
from typing import Any, Optional

from fairseq.logging import metrics
from fairseq.optim.lr_scheduler import register_lr_scheduler
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import (
    ReduceLROnPlateauLRSchedule,
    ReduceLROnPlateauLRScheduleConfig,
)


@register_lr_scheduler("reduce_lr_on_valid_loss", dataclass=ReduceLROnPlateauLRScheduleConfig)
class ReduceLROnValidLossSchedule(ReduceLROnPlateauLRSchedule):
    """fairseq's ``reduce_lr_on_plateau``, with the same flags, except that

    - it follows the validation loss, where stock follows ``--best-checkpoint-metric``: a learning
      rate halved when the loss rises goes with a best checkpoint chosen by accuracy ("Sparse
      Sequence-to-Sequence Models", section 4). The loss of an epoch is the mean over all
      validation data, and over all validations of the epoch where there are several;
    - a resumed run goes on as an undisturbed one. Stock forgets the validation that came before
      the checkpoint, and how many bad epochs ``--lr-patience`` has seen.
    """

    def __init__(self, cfg: ReduceLROnPlateauLRScheduleConfig, optimizer):
        if not 0 < cfg.lr_shrink < 1:
            raise ValueError(f"--lr-shrink must lie between 0 and 1, got {cfg.lr_shrink}")
        if cfg.lr_patience < 0:
            raise ValueError(f"--lr-patience must be at least 0, got {cfg.lr_patience}")
        cfg = copy.deepcopy(cfg)
        cfg.maximize_best_checkpoint_metric = False
        super().__init__(cfg, optimizer)
        self.epoch = 0
        # The loss that a checkpoint was written with, which the learning rate does not know yet.
        self.pending: Optional[float] = None

    def state_dict(self) -> dict[str, Any]:
        # fairseq writes the checkpoint of an epoch between its validation and step().
        return {
            **super().state_dict(),
            "bad_epochs": self.lr_scheduler.num_bad_epochs,
            "epoch": self.epoch,
            "valid_loss": _valid_loss(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.lr_scheduler.num_bad_epochs = state_dict.get("bad_epochs", 0)
        self.epoch = state_dict.get("epoch", 0)
        self.pending = state_dict.get("valid_loss")

    def step_begin_epoch(self, epoch: int) -> None:
        if self.pending is not None and epoch > self.epoch:
            super().step(self.epoch, self.pending)
        self.pending = None
        if epoch != self.epoch:
            self.epoch = epoch
            metrics.reset_meters("valid")

    def step(self, epoch: int, val_loss: Optional[float] = None) -> float:
        """Update the learning rate after an epoch; *val_loss* is that of the best checkpoint's
        metric, and is not looked at."""
        return super().step(epoch, None if val_loss is None else _valid_loss())


def _valid_loss() -> Optional[float]:
    meter = metrics.get_meter("valid", "loss")
    return None if meter is None or not meter.count else float(meter.sum / meter.count)

"""Lets a task log the energy of training."""

from typing import Any, Optional

from fairseq.logging import metrics

from fairseq_sparse.tasks.energy import EnergyMeter, gpu_counter


class LogsEnergy:
    """Mixin that lets a fairseq task log ``watt_hours``; list it before the task's class.

    The figure is the energy that the GPUs of all workers have used since the run began, across
    resumptions and without validation. It is absent if NVML cannot measure it.
    """

    energy: Optional[EnergyMeter] = None

    def build_energy_meter(self, model, optimizer, update_num: int) -> EnergyMeter:
        """Build the meter for the training that begins or resumes now."""
        device = next(model.parameters()).device
        return EnergyMeter(gpu_counter(device), device, optimizer, update_num)

    def train_step(
        self, sample, model, criterion, optimizer, update_num, ignore_grad=False, ema_model=None
    ):
        if self.energy is None:
            self.energy = self.build_energy_meter(model, optimizer, update_num)
        self.energy.resume()
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def valid_step(self, *args, **kwargs):
        if self.energy is not None:
            self.energy.pause()
        return super().valid_step(*args, **kwargs)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if self.energy is not None and criterion.training:
            watt_hours = self.energy.total()
            if watt_hours is not None:
                # weight 0: the latest value, not a mean
                metrics.log_scalar("watt_hours", watt_hours, weight=0, priority=810, round=4)

"""The energy of training, which the tasks of this package log as ``watt_hours``."""

import ctypes
import logging
import math
from collections.abc import Callable
from typing import Any, Optional

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer

logger = logging.getLogger(__name__)

_MILLIJOULES_PER_WATT_HOUR = 3_600_000
_KEY = "watt_hours"


class LogsEnergy:
    """Mixin that lets a fairseq task log ``watt_hours``; list it before the task's class.

    The figure is the energy that the GPUs of all workers have used since the run began, across
    resumptions and without validation. It is absent if NVML cannot measure it.
    """

    energy: Optional["EnergyMeter"] = None

    def build_energy_meter(self, model, optimizer, update_num: int) -> "EnergyMeter":
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
                metrics.log_scalar(_KEY, watt_hours, weight=0, priority=810, round=4)


class EnergyUnknown(Exception):
    """The energy of a GPU cannot be read; the message says why."""


class EnergyMeter:
    """Energy used by the GPUs of all workers during the updates of a run, in watt-hours.

    Each worker reads the energy counter of its GPU (Volta or later), so the figure includes every
    process that uses the card. The time between :meth:`pause` and the next :meth:`resume` does not
    count.

    The sum so far is kept among the optimizer's options, which are restored when training resumes;
    fairseq saves the state of a task too, but does not load it. The sum covers the whole run; it is
    unknown if one worker's counter cannot be read, or if updates before a resumption were not
    measured.

    Args:
        counter: returns the energy counter of this worker's GPU, in millijoules, or NaN.
        device: the device on which this worker trains.
        optimizer: the optimizer of the run, with its state loaded.
        update_num: number of updates made so far.
    """

    def __init__(
        self,
        counter: Callable[[], float],
        device: torch.device,
        optimizer: FairseqOptimizer,
        update_num: int,
    ):
        self._counter = counter
        self._device = device
        self._options: dict[str, Any] = next(iter(optimizer.param_groups))
        self._before = self._options.get(_KEY, 0.0)
        # NaN reaches the other workers through the sum, so that all give up together.
        self._own = 0.0 if _KEY in self._options or update_num == 0 else math.nan
        self._mark: Optional[float] = None
        self._unknown = False

    def resume(self) -> None:
        """Start counting, unless already counting."""
        if self._mark is None:
            self._mark = self._counter()

    def pause(self) -> None:
        """Stop counting."""
        self._advance()
        self._mark = None

    def total(self) -> Optional[float]:
        """Return the energy used by all workers, or None if unknown. Collective: every worker must
        call it."""
        if self._unknown:
            return None
        self._advance()
        used = self._own
        if distributed_utils.get_data_parallel_world_size() > 1:
            group = distributed_utils.get_data_parallel_group()
            used = distributed_utils.all_reduce_dict({_KEY: used}, self._device, group)[_KEY].item()
        total = self._before + used / _MILLIJOULES_PER_WATT_HOUR
        if math.isnan(total):
            self._unknown = True
            self._options.pop(_KEY, None)  # a later part of the run must not add to it
            if self._counter is not unreadable:  # gpu_counter has already logged the reason
                logger.info("watt_hours is not logged: unknown for some workers or updates")
            return None
        self._options[_KEY] = total
        return total

    def _advance(self) -> None:
        if self._mark is not None:
            now = self._counter()
            self._own += now - self._mark
            self._mark = now


def nvml_counter(bus_id: str) -> Callable[[], float]:
    """Return a function that reads the energy counter of a GPU.

    Args:
        bus_id: the PCI bus id of the GPU, see :func:`pci_bus_id`.

    Returns:
        A function that returns the millijoules since the driver was loaded, or NaN if NVML fails.

    Raises:
        EnergyUnknown: there is no NVML, the GPU has no counter, or it is divided (MIG).
    """
    try:
        import pynvml
    except ImportError as error:
        raise EnergyUnknown("the package nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        divided = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) > 0
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        raise EnergyUnknown(f"GPU {bus_id} has no energy counter ({error})") from error
    if divided:
        raise EnergyUnknown(f"GPU {bus_id} is divided (MIG), and its counter covers all parts")

    def read() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except pynvml.NVMLError:
            return math.nan

    return read


def pci_bus_id(device: torch.device) -> str:
    """Return the PCI bus id of a CUDA device, such as ``0000:3B:00.0``.

    NVML needs it, because NVML numbers all GPUs of the machine, but PyTorch only those of
    ``CUDA_VISIBLE_DEVICES``.

    Raises:
        EnergyUnknown: there is no NVIDIA driver, or it does not know the device.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    handle, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EnergyUnknown("there is no NVIDIA driver") from error
    if cuda.cuDeviceGet(ctypes.byref(handle), index) or cuda.cuDeviceGetPCIBusId(
        text, len(text), handle
    ):
        raise EnergyUnknown(f"the driver does not say where GPU {index} is")
    return text.value.decode("ascii")


def unreadable() -> float:
    """Return NaN, the reading of a device without a counter."""
    return math.nan


def gpu_counter(device: torch.device) -> Callable[[], float]:
    """Return the counter of a device: :func:`unreadable` for a CPU and, with a log message, for a
    GPU whose counter cannot be read."""
    if device.type != "cuda":
        return unreadable
    try:
        return nvml_counter(pci_bus_id(device))
    except EnergyUnknown as error:
        logger.info("watt_hours is not logged: %s", error)
        return unreadable

"""Measures the energy of training, which the tasks of this package log as ``watt_hours``."""

import ctypes
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import torch

if TYPE_CHECKING:
    from fairseq.optim import FairseqOptimizer

logger = logging.getLogger(__name__)

_MILLIJOULES = 3_600_000  # in a watt-hour
_KEY = "watt_hours"


class EnergyUnknown(Exception):
    """The energy of a GPU cannot be read; the message says why."""


class EnergyMeter:
    """Energy of the GPUs of all workers over the updates of a run, in watt-hours.

    Each worker reads the counter that its GPU has had since the Volta generation, so the figure is
    what the whole card used, whoever used it. The time between :meth:`pause` and the next
    :meth:`resume` does not count.

    The sum so far is kept among the optimizer's options, which come back when training resumes;
    fairseq saves the state of a task too, but does not load it. The sum is of the whole run, or it
    is unknown: where one worker's counter cannot be read, and where the updates before a resumption
    were not measured.

    Args:
        counter: reads the counter of this worker's GPU, in millijoules; NaN where it cannot.
        device: where this worker trains.
        optimizer: of the run, its state loaded.
        update_num: the updates that were made already.
    """

    def __init__(
        self,
        counter: Callable[[], float],
        device: torch.device,
        optimizer: "FairseqOptimizer",
        update_num: int,
    ):
        self._counter = counter
        self._device = device
        self._options: dict[str, Any] = next(iter(optimizer.param_groups))
        self._before = self._options.get(_KEY, 0.0)
        # Told to the other workers with the sum, so that all give up together.
        self._own = 0.0 if _KEY in self._options or update_num == 0 else math.nan
        self._mark: Optional[float] = None
        self._unknown = False

    def resume(self) -> None:
        """Count from now on, unless it does so already."""
        if self._mark is None:
            self._mark = self._counter()

    def pause(self) -> None:
        """Count no more."""
        self._advance()
        self._mark = None

    def total(self) -> Optional[float]:
        """Return what all workers have used; all of them must ask at the same time. None if
        unknown."""
        if self._unknown:
            return None
        self._advance()
        used = self._own
        from fairseq.distributed import utils as distributed_utils

        if distributed_utils.get_data_parallel_world_size() > 1:
            group = distributed_utils.get_data_parallel_group()
            used = distributed_utils.all_reduce_dict({_KEY: used}, self._device, group)[_KEY].item()
        total = self._before + used / _MILLIJOULES
        if math.isnan(total):
            self._unknown = True
            self._options.pop(_KEY, None)  # a later part of the run must not add to it
            if self._counter is not unreadable:  # which was explained
                logger.info("watt_hours is not logged: not known for all workers and updates")
            return None
        self._options[_KEY] = total
        return total

    def _advance(self) -> None:
        if self._mark is not None:
            now = self._counter()
            self._own += now - self._mark
            self._mark = now


def nvml_counter(bus_id: str) -> Callable[[], float]:
    """Return the counter of a GPU, in millijoules since its driver was loaded.

    Args:
        bus_id: of the GPU, see :func:`pci_bus_id`.

    Returns:
        A function that reads it, and gives NaN where NVML fails to.

    Raises:
        EnergyUnknown: there is no NVML, the GPU has no counter, or is divided (MIG).
    """
    try:
        import pynvml
    except ImportError as error:
        raise EnergyUnknown("it needs the package nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        divided = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) > 0
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        raise EnergyUnknown(f"GPU {bus_id} has no counter of energy ({error})") from error
    if divided:
        raise EnergyUnknown(f"GPU {bus_id} is divided (MIG), and counts for all parts together")

    def read() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except pynvml.NVMLError:
            return math.nan

    return read


def pci_bus_id(device: torch.device) -> str:
    """Return where a CUDA device sits, such as ``0000:3B:00.0``.

    That names it for NVML, which numbers all GPUs of the machine by their places; PyTorch numbers
    those of ``CUDA_VISIBLE_DEVICES``.

    Raises:
        EnergyUnknown: it is not a GPU of NVIDIA.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    handle, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EnergyUnknown("there is no driver of NVIDIA's") from error
    if cuda.cuDeviceGet(ctypes.byref(handle), index) or cuda.cuDeviceGetPCIBusId(
        text, len(text), handle
    ):
        raise EnergyUnknown(f"the driver does not say where GPU {index} is")
    return text.value.decode("ascii")


def unreadable() -> float:
    """Return what there is to read of a device without a counter."""
    return math.nan


def gpu_counter(device: torch.device) -> Callable[[], float]:
    """Return the counter of a device; :func:`unreadable` on a CPU, and where a GPU's cannot be
    read, which the log says."""
    if device.type != "cuda":
        return unreadable
    try:
        return nvml_counter(pci_bus_id(device))
    except EnergyUnknown as error:
        logger.info("watt_hours is not logged: %s", error)
        return unreadable

"""Energy of training: summed over workers and resumptions, without validation, or unknown."""

import logging
import math
import os
import sys
from argparse import Namespace

import pytest
import torch
from fairseq.logging import metrics

import toy
from commands import logged, train, train_on_two_workers
from fairseq_sparse.tasks import energy

# A stand-in for NVML on a machine with two GPUs. Each reading advances the counter of the first by
# 0.1 watt-hours, and that of the second by 0.2.
PYNVML = """
class NVMLError(Exception):
    pass

counters = {"0000:00:00.0": 7_000_000_000_000, "0000:01:00.0": 40}
steps = {"0000:00:00.0": 360_000, "0000:01:00.0": 720_000}
mig_devices = 0

def nvmlInit():
    pass

def nvmlDeviceGetHandleByPciBusId(bus_id):
    if bus_id not in counters:
        raise NVMLError("Not Found")
    return bus_id

def nvmlDeviceGetMaxMigDeviceCount(handle):
    return mig_devices

def nvmlDeviceGetTotalEnergyConsumption(handle):
    counters[handle] += steps[handle]
    return counters[handle]
"""
# A task whose workers run on the CPU; each reads the counter of GPU rank + FIRST_GPU.
PLUGIN = """
import os

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import register_task

import fairseq_sparse
from fairseq_sparse.tasks import energy
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask

@register_task("on_gpus", dataclass=TranslationSparseConfig)
class OnGPUs(TranslationSparseTask):
    def build_energy_meter(self, model, optimizer, update_num):
        gpu = distributed_utils.get_global_rank() + int(os.environ.get("FIRST_GPU", 0))
        try:
            counter = energy.nvml_counter(f"0000:0{gpu}:00.0")
        except energy.EnergyUnknown:
            counter = energy.unreadable
        return energy.EnergyMeter(counter, torch.device("cpu"), optimizer, update_num)
"""


class Counter:
    """A counter of millijoules that a test sets."""

    def __init__(self):
        self.value = 10**12

    def __call__(self):
        return self.value

    def use(self, watt_hours):
        self.value += watt_hours * 3_600_000


def make_optimizer():
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])


def meter(counter, optimizer=None, update_num=0):
    cpu = torch.device("cpu")
    return energy.EnergyMeter(counter, cpu, optimizer or make_optimizer(), update_num)


def resumed(optimizer):
    """An optimizer with the state of another."""
    copy = make_optimizer()
    copy.load_state_dict(optimizer.state_dict())
    return copy


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """Make the stand-in for NVML importable, and return its folder."""
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(PYNVML)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "nvml")
    yield tmp_path / "nvml"
    sys.modules.pop("pynvml", None)


@pytest.fixture
def on_gpus(tmp_path, nvml):
    """Flags and environment of the task whose workers have GPUs."""
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(PLUGIN)
    path = os.pathsep.join([str(toy.ROOT), str(nvml)])
    return ("--user-dir", str(plugin), "--task", "on_gpus"), {"PYTHONPATH": path}


def watt_hours(output, tag):
    """Return updates -> watt-hours in that line of the log, or None if it has none."""
    prefix = "" if tag == "train_inner" else f"{tag}_"
    return {
        int(record[f"{prefix}num_updates"]): (
            float(record[f"{prefix}watt_hours"]) if f"{prefix}watt_hours" in record else None
        )
        for record in logged(output, tag)
    }


def test_sum_over_updates_without_validation():
    counter = Counter()
    run = meter(counter)
    counter.use(5)  # before the first update
    for expected in (1, 2):
        run.resume()
        run.resume()  # a second batch of the same update
        counter.use(1)
        assert run.total() == pytest.approx(expected)
    counter.use(1)  # the next batch is loaded
    run.pause()
    counter.use(20)
    run.pause()
    run.resume()
    counter.use(1)
    assert run.total() == pytest.approx(4)


class Reduces:
    def reduce_metrics(self, logging_outputs, criterion):
        pass


class Task(energy.LogsEnergy, Reduces):
    pass


def test_the_last_sum_is_logged_and_not_the_mean_of_the_sums():
    task = Task()
    task.energy = Namespace(total=iter([1.0, 4.0, 9.0]).__next__)
    with metrics.aggregate(new_root=True) as logged_values:
        for training in (True, True, False, True):
            task.reduce_metrics([], Namespace(training=training))
    assert logged_values.get_smoothed_values() == {"watt_hours": 9.0}


def test_sum_goes_on_where_the_run_is_resumed():
    counter, optimizer = Counter(), make_optimizer()
    first = meter(counter, optimizer)
    first.resume()
    counter.use(3)
    first.total()
    counter.use(100)  # not training, or training that is lost
    second = meter(counter, resumed(optimizer), update_num=7)
    second.resume()
    counter.use(1)
    assert second.total() == pytest.approx(4)


@pytest.mark.parametrize("measured", [[False, True], [True, False, True]])
def test_sum_of_a_part_of_the_run_is_not_told(measured):
    optimizer = make_optimizer()
    for part, is_measured in enumerate(measured):
        counter = Counter()
        run = meter(counter if is_measured else energy.unreadable, optimizer, update_num=part)
        run.resume()
        counter.use(1)
        total = run.total()
        optimizer = resumed(optimizer)
    assert total is None


def test_counter_that_fails_ends_the_measurement():
    counter = Counter()
    run = meter(counter)
    run.resume()
    assert run.total() == 0
    counter.value = math.nan
    assert run.total() is None
    counter.value = 10**12
    assert run.total() is None


def test_reasons_for_no_counter(nvml, monkeypatch):
    with pytest.raises(energy.EnergyUnknown, match="0000:07:00.0 has no energy counter.*Not Found"):
        energy.nvml_counter("0000:07:00.0")
    import pynvml

    monkeypatch.setattr(pynvml, "mig_devices", 7)
    with pytest.raises(energy.EnergyUnknown, match="divided"):
        energy.nvml_counter("0000:00:00.0")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # makes the import fail
    with pytest.raises(energy.EnergyUnknown, match="nvidia-ml-py"):
        energy.nvml_counter("0000:00:00.0")


def test_counter_that_cannot_be_read_any_more(nvml, monkeypatch):
    read = energy.nvml_counter("0000:00:00.0")
    import pynvml

    def lost(handle):
        raise pynvml.NVMLError("GPU is lost")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lost)
    assert math.isnan(read())


def test_log_says_once_why_there_is_no_energy_of_a_gpu(monkeypatch, caplog):
    def no_driver(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", no_driver)
    caplog.set_level(logging.INFO, energy.__name__)
    assert energy.gpu_counter(torch.device("cpu")) is energy.unreadable
    assert not caplog.records
    run = meter(energy.gpu_counter(torch.device("cuda", 0)))
    for _ in range(3):
        run.resume()
        assert run.total() is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == "watt_hours is not logged: there is no NVIDIA driver"


@pytest.mark.gpu
def test_training_on_a_real_gpu(data, tmp_path):
    pytest.importorskip("pynvml")
    flags = "--task translation_sparse --arch transformer_sparse_tiny --optimizer adam --lr 0.01"
    flags += " --max-tokens 400 --max-update 20 --log-format json --log-interval 1"
    folders = ("--user-dir", toy.USER_DIR, "--save-dir", tmp_path)
    output = toy.run("fairseq_cli.train", data, *folders, *flags.split()).stdout
    used = list(watt_hours(output, "train_inner").values())
    assert len(used) == 20 and used == sorted(used) and 0 < used[-1] < 10


@pytest.mark.gpu
def test_counter_of_a_real_gpu_goes_on_as_it_works():
    pytest.importorskip("pynvml")
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    read = energy.nvml_counter(energy.pci_bus_id(device))
    before = read()
    matrix = torch.randn(4096, 4096, device=device)
    for _ in range(300):
        matrix = torch.nn.functional.normalize(matrix @ matrix)
    torch.cuda.synchronize(device)
    assert 0 < (read() - before) < 3_600_000


@pytest.mark.slow
def test_training_and_resumption(data, on_gpus, tmp_path):
    flags, env = on_gpus
    flags = (*flags, "--log-interval", "1", "--max-tokens", "200", "--update-freq", "2")
    inner, epochs = {}, {}
    for until in (("--max-update", "2"), ("--max-epoch", "1"), ("--max-epoch", "3")):
        output = train(data, tmp_path / "run", *flags, *until, env=env).stdout
        part = watt_hours(output, "train_inner")
        assert part and min(part) == len(inner) + 1
        inner.update(part)
        epochs.update(watt_hours(output, "train"))
        assert set(watt_hours(output, "valid").values()) == {None}
    _, first, second, third = sorted(epochs)
    assert 2 < first < second < third == len(inner)
    # Each update adds one reading, and so does the start of the validation after the second epoch.
    # Energy used between the last update and a resumption is not known.
    for update, used in inner.items():
        assert used == pytest.approx(0.1 * (update + (update > second)))
    for update, used in epochs.items():
        assert used == pytest.approx(inner[update])


@pytest.mark.slow
@pytest.mark.parametrize(("first_gpu", "step"), [("0", pytest.approx(0.3)), ("1", None)])
def test_two_workers(first_gpu, step, data, on_gpus, tmp_path, monkeypatch):
    flags, env = on_gpus
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    monkeypatch.setenv("FIRST_GPU", first_gpu)  # from 1 there is none for the second worker
    flags = (*flags, "--log-interval", "1", "--max-update", "3", "--max-tokens", "200")
    outputs = train_on_two_workers(data, tmp_path / "run", *flags, "--disable-validation")
    used = watt_hours(outputs[0], "train_inner")
    if step is None:
        assert used == dict.fromkeys((1, 2, 3))
        assert outputs[0].count("watt_hours is not logged") == 1
    else:
        assert {update: total / update for update, total in used.items()} == dict.fromkeys(
            (1, 2, 3), step
        )


def test_nothing_is_said_on_a_cpu(data, nvml, tmp_path):
    result = train(
        *(data, tmp_path / "run", "--max-update", "2", "--log-interval", "1"),
        env={"PYTHONPATH": os.pathsep.join([str(toy.ROOT), str(nvml)])},
    )
    assert set(watt_hours(result.stdout, "train_inner").values()) == {None}
    assert "watt_hours" not in result.stdout + result.stderr

"""Time and memory of functions, measured in turns."""

import gc
import math
import time
from collections.abc import Callable

import torch

Jobs = dict[str, Callable[[], object]]


def measure(
    jobs: Jobs, rounds: int, least_seconds: float, device: str = "cpu"
) -> dict[str, list[float]]:
    """Measure the seconds that each job takes, once per round; within a round they take turns."""
    for run in jobs.values():
        seconds_of(run, 1, device)  # warm up: allocate buffers, choose algorithms
    once = {name: seconds_of(run, 1, device) for name, run in jobs.items()}
    repeats = {name: max(1, math.ceil(least_seconds / once[name])) for name in jobs}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    gc.collect()
    for _ in range(rounds):
        for name, run in jobs.items():
            seconds[name].append(seconds_of(run, repeats[name], device))
    return seconds


def seconds_of(run: Callable[[], object], repeats: int, device: str) -> float:
    def finish():
        if device != "cpu":
            torch.cuda.synchronize(device)

    finish()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    finish()
    return (time.perf_counter() - start) / repeats


def peak_memory(run: Callable[[], object], device: str = "cpu") -> int:
    """Return the peak of the bytes that PyTorch allocates during ``run``, beyond those before it.

    On a CPU it is the rise above the lowest point, so that memory freed when ``run`` starts (the
    gradients of the previous run) does not reduce the result.
    """
    if device != "cpu":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        run()
    now = least = peak = 0
    # Read the events directly: an exported trace can have a million of them.
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            least = min(least, now)
            peak = max(peak, now - least)
    return peak

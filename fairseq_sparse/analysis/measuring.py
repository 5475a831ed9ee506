"""Time and memory of functions, measured beside one another."""

import gc
import math
import time
from collections.abc import Callable

import torch

Jobs = dict[str, Callable[[], object]]


def measure(
    jobs: Jobs, rounds: int, least_seconds: float, device: str = "cpu"
) -> dict[str, list[float]]:
    """Measure the seconds that each job takes, one number a round; in a round they run one by
    one."""
    for run in jobs.values():
        seconds_of(run, 1, device)  # makes buffers, chooses algorithms
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
    """Return the bytes that PyTorch had allocated at once, beyond what it had before.

    On a CPU it is the rise above the least, so that memory which ``run`` frees at its start (the
    gradients of the run before) does not count for less than nothing.
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
    # Not the trace that it can export: a slow kind on a long input has a million events.
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            least = min(least, now)
            peak = max(peak, now - least)
    return peak

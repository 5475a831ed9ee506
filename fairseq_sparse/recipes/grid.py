"""Runs several plans side by side, each on its share of the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import engine, supervisor
from fairseq_sparse.recipes.launch import count_gpus
from fairseq_sparse.recipes.plan import Plan

Job = tuple[str, Plan, Sequence[str]]


def run_all(jobs: Sequence[Job], at_once: int, config: str) -> list[str]:
    """Run plans, several at a time; go on after a failure, and return the failed ones' names and
    logs.

    Data that several of them use are prepared first, once. ``at_once`` is 0 for one run on each
    GPU, and for one on a CPU.
    """
    parts = shares(at_once, config)
    folders = [_data_of(job) for job in jobs]
    first = {folder: job for folder, job in reversed([*zip(folders, jobs, strict=True)]) if folder}
    later = {
        folder: [
            stage
            for place, (_, plan, names) in zip(folders, jobs, strict=True)
            if place == folder
            for stage in engine.stages_of(plan, names)
        ]
        for folder in first
    }
    data = {
        folder: engine.task_of(plan, ["prepare"], f"data for {name}", later[folder])
        for folder, (name, plan, _) in first.items()
    }
    supervisor.supervise([*data.values()], [{}])
    unprepared = {folder for folder, task in data.items() if task.error is not None}
    tasks = {
        number: engine.task_of(plan, names, name)
        for number, (folder, (name, plan, names)) in enumerate(zip(folders, jobs, strict=True))
        if folder not in unprepared
    }
    supervisor.supervise([*tasks.values()], parts)
    failures = []
    for number, (name, _, _) in enumerate(jobs):
        if number not in tasks:
            failures.append(f"{name}: no data, see above")
        elif tasks[number].error is not None:
            log = tasks[number].message.get("log") or tasks[number].error.split("\n")[0]
            failures.append(f"{name}: {log}")
    if failures:
        lines = "".join(f"\n  {failure}" for failure in failures)
        print(f"{len(failures)} of {len(jobs)} runs failed:{lines}", file=sys.stderr, flush=True)
    return failures


def shares(at_once: int, config: str) -> list[dict[str, str]]:
    """Return the variables of simultaneous runs: their GPUs, as many for each, or their threads."""
    if config == "gpu":
        count = count_gpus()
        if not count:
            raise RecipeError("PyTorch sees no GPU; use --cpu, or check CUDA_VISIBLE_DEVICES")
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
        gpus, many = names.split(",")[:count], at_once or count
        starts = [run * count // many for run in range(many)]
        size = max(1, count // many)
        return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[at : at + size])} for at in starts]
    many = at_once or 1
    if many == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{}] * many
    # Otherwise each run takes all cores, and they wait for each other.
    return [{"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // many))}] * many


def _data_of(job: Job) -> Optional[Path]:
    """Return the folder that a run prepares, or None."""
    _, plan, names = job
    prepared = (stage.folder for stage in plan.stages if stage.name == "prepare")
    return next(prepared, None) if not names or "prepare" in names else None

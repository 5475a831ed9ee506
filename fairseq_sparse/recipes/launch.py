"""Training by several workers: on one machine, or on several that meet at an address.

Each machine starts its workers by torchrun; they are plain ``fairseq-train``.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import engine, records
from fairseq_sparse.recipes.plan import Plan, Stage

# The other machines wait for the first, which may need days for the preparation; in seconds.
_PATIENCE = 604_800
# Of NVIDIA, AMD, and Windows' Linux.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True)
class Launch:
    """Where the workers of a training are.

    Attributes:
        machines: how many machines there are.
        machine: number of this one, from 0; only machine 0 writes files.
        workers: workers on each machine.
        address, port: where the machines meet, on machine 0.
    """

    machines: int = 1
    machine: int = 0
    workers: int = 1
    address: str = ""
    port: int = 29500

    @property
    def devices(self) -> int:
        """The number of workers on all machines."""
        return self.machines * self.workers

    def command(self) -> tuple[str, ...]:
        """Return the program that trains, before its arguments."""
        if self.devices == 1:
            return ("fairseq-train",)
        place = ("--standalone", "--local-addr", "localhost")
        if self.machines > 1:
            place = (
                *("--nnodes", str(self.machines), "--node-rank", str(self.machine)),
                *("--master-addr", self.address, "--master-port", str(self.port)),
                *("--rdzv-conf", f"timeout={_PATIENCE}"),
            )
        workers = ("--nproc-per-node", str(self.workers), "--no-python", "fairseq-train")
        return ("torchrun", *place, *workers)

    def flags(self) -> list[str]:
        """Return the flags of fairseq-train that say how many workers there are, and their ranks.

        torchrun gives them in variables: fairseq reads LOCAL_RANK, and PyTorch, for rank -1, RANK.
        fairseq would read RANK, too, but 0.12.2 then has no GPU of its own for each worker, and
        fairseq-fixed cannot do without one.
        """
        # Otherwise fairseq would start a worker for each GPU that it sees, even with --cpu.
        size = ["--distributed-world-size", str(self.devices)]
        if self.devices == 1:
            return size
        rank = ["--distributed-rank", "-1", "--distributed-init-method", "env://"]
        return [*size, *rank, "--distributed-no-spawn"]


ALONE = Launch()


@functools.cache
def count_gpus() -> int:
    """Return how many GPUs PyTorch sees, without loading it where there can be none.

    It is asked in another process, because CUDA does not survive forks.
    """
    if not any(map(os.path.exists, _GPU_DEVICES)):
        return 0
    program = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise RecipeError(f"the GPUs cannot be counted: {done.stderr.strip()}")
    return int(done.stdout)


def join_training(plan: Plan, launch: Launch) -> None:
    """Take part in the training of machine 0, which does everything else."""
    prepare, train = plan.stages[:2]
    if not records.is_finished(prepare):
        print(f"waiting for machine 0 to prepare {prepare.folder}", file=sys.stderr)
        while not records.is_finished(prepare):
            time.sleep(2)
    if records.is_finished(train):
        print("[train] done already", file=sys.stderr)
        return
    # It has a folder, and so a lock and a log, of its own, and runs whenever machine 0 trains.
    folder = train.folder / f"machine-{launch.machine}"
    own = Stage("train", folder, {"begun": time.time()}, (), (), train.commands)
    engine.run(replace(plan, stages=(own,)))

"""One of several workers: fairseq-train, with its rank and device from torchrun's variables.

fairseq reads them, too, but 0.12.2 then uses one GPU for all workers of a machine, and
fairseq-fixed needs a GPU.
"""

import os
import sys

from fairseq_cli.train import cli_main
from torch.distributed.elastic.multiprocessing.errors import record


def main() -> None:
    started, expected = os.environ.get("WORLD_SIZE"), os.environ.get("LAUNCH_DEVICES")
    if started is None:
        sys.exit("worker.py: torchrun starts it; to train, use torchrun.sh or slurm.sh")
    if expected not in (None, started):
        sys.exit(
            f"{started} workers were started, but {expected} were expected: give all machines "
            "the same --nproc-per-node"
        )
    sys.argv += ["--distributed-world-size", started, "--distributed-rank", os.environ["RANK"]]
    sys.argv += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    sys.argv += ["--device-id", os.environ["LOCAL_RANK"]]
    cli_main()


if __name__ == "__main__":
    record(main)()

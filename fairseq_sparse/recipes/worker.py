"""One of several workers: fairseq-train, with its rank and device from torchrun's variables.

fairseq reads these variables, too, but 0.12.2 then uses one GPU for all workers of a machine, and
fairseq-fixed needs a GPU.
"""

import os
import sys


def main() -> None:
    started = os.environ.get("WORLD_SIZE")
    if started is None:
        sys.exit("worker: torchrun starts it; to train, use fairseq-train or fairseq-sparse run")
    size = "--distributed-world-size"
    expected = sys.argv[sys.argv.index(size) + 1] if size in sys.argv else started
    if expected != started:
        sys.exit(
            f"{started} workers were started, but {expected} were expected: give all machines "
            "the same --nproc-per-node"
        )
    # Imported here, because the package's recipes load neither torch nor fairseq.
    from fairseq_cli.train import cli_main
    from torch.distributed.elastic.multiprocessing.errors import record

    sys.argv += [size, started, "--distributed-rank", os.environ["RANK"]]
    sys.argv += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    sys.argv += ["--device-id", os.environ["LOCAL_RANK"]]
    record(cli_main)()


if __name__ == "__main__":
    main()

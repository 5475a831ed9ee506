#!/usr/bin/env python3
"""Write a checkpoint of a softmax model as one of stock fairseq, which needs no --user-dir.

The parameters stay as they are: fairseq-generate --task translation gives the same translations.
The state of the optimizer is left out; train on from it with --finetune-from-model. A model with
another output or attention than softmax is refused.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from command_line import one_line


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", metavar="CHECKPOINT", help="of a model of this package")
    parser.add_argument("output", metavar="OUTPUT", help="the checkpoint to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    # Imported here so that --help is quick.
    from fairseq_sparse.checkpoint_averaging import save_checkpoint
    from fairseq_sparse.checkpoint_export import export_checkpoint
    from fairseq_sparse.checkpoint_safety import CheckpointError

    try:
        if os.path.realpath(options.output) == os.path.realpath(options.input):
            raise CheckpointError(
                f"{options.output}: is the checkpoint itself: give another OUTPUT"
            )
        save_checkpoint(export_checkpoint(options.input), options.output)
    except (CheckpointError, OSError) as error:
        print(f"export_checkpoint.py: error: {one_line(error)}", file=sys.stderr)
        return 1
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

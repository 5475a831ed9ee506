"""Average the parameters of several fairseq checkpoints into one checkpoint.

fairseq-sparse average --inputs checkpoints --num-epoch-checkpoints 5 --output average.pt
fairseq-sparse average --inputs a.pt b.pt --output average.pt
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import command_parser, refuse_overwriting
from fairseq_sparse.commands.models import refuse_twice
from fairseq_sparse.commands.values import positive


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("average", __doc__)
    add = parser.add_argument
    text = "checkpoints; with --num-epoch-checkpoints or --num-update-checkpoints, their folder"
    add("--inputs", nargs="+", required=True, metavar="FILE", help=text)
    add("--output", required=True, metavar="FILE", help="the checkpoint to write")
    which = parser.add_mutually_exclusive_group()
    saved = {"epoch": "after an epoch (checkpointE.pt)"}
    saved["update"] = "within an epoch (checkpoint_E_U.pt)"
    for kind, when in saved.items():
        text = f"average the last N checkpoints that were saved {when}"
        which.add_argument(f"--num-{kind}-checkpoints", type=positive, metavar="N", help=text)
    text = "in place of the parameters, average the exponential averages of --store-ema"
    add("--ema", action="store_true", help=text)
    text = "write a checkpoint to give away: in fp16, without state and paths of the training"
    add("--share", action="store_true", help=text)
    options = parser.parse_args(arguments)
    options.count = options.num_epoch_checkpoints or options.num_update_checkpoints
    if options.count and len(options.inputs) != 1:
        parser.error("--inputs must be one folder when a number of checkpoints is given")
    refuse_twice(parser, options.inputs, "--inputs: ")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.checkpoints import averaging

    paths = options.inputs
    averaging.check_output(options.output)
    if options.count:
        by = "epoch" if options.num_epoch_checkpoints else "update"
        paths = averaging.last_checkpoints(options.inputs[0], options.count, by)
    refuse_overwriting(options.output, paths)
    state = averaging.average_checkpoints(
        paths, progress=lambda line: print(line, flush=True), exponential=options.ema
    )
    if options.share:
        state = averaging.for_sharing(state)
    averaging.save_checkpoint(state, options.output)
    print(f"wrote the average of {len(paths)} checkpoints to {options.output}")

"""Average the parameters of several fairseq checkpoints into one checkpoint.

fairseq-sparse average --inputs checkpoints --num-epoch-checkpoints 5 --output average.pt
fairseq-sparse average --inputs a.pt b.pt --output average.pt
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import command_parser, finish, positive, refuse_overwriting


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("average", __doc__)
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        help="the checkpoints; with --num-epoch-checkpoints or --num-update-checkpoints, their "
        "folder",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--num-epoch-checkpoints",
        type=positive,
        metavar="N",
        help="average the last N checkpoints that were saved after an epoch (checkpointE.pt)",
    )
    which.add_argument(
        "--num-update-checkpoints",
        type=positive,
        metavar="N",
        help="average the last N checkpoints that were saved within an epoch (checkpoint_E_U.pt)",
    )
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=positive,
        metavar="N",
        help="leave out checkpoints after this epoch (or update, with --num-update-checkpoints)",
    )
    parser.add_argument(
        "--ema",
        action="store_true",
        help="instead of the parameters, average their exponential averages, which fairseq-train "
        "--store-ema saves in a checkpoint",
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help="write a checkpoint to give away: in fp16, without state and paths of the training",
    )
    options = parser.parse_args(arguments)
    by_number = options.num_epoch_checkpoints or options.num_update_checkpoints
    if by_number and len(options.inputs) != 1:
        parser.error("--inputs must be one folder when a number of checkpoints is given")
    if options.checkpoint_upper_bound and not by_number:
        parser.error(
            "--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints"
        )
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.checkpoints import averaging

    paths = options.inputs
    averaging.check_output(options.output)
    if options.num_epoch_checkpoints or options.num_update_checkpoints:
        paths = averaging.last_checkpoints(
            options.inputs[0],
            options.num_epoch_checkpoints or options.num_update_checkpoints,
            by="epoch" if options.num_epoch_checkpoints else "update",
            upper_bound=options.checkpoint_upper_bound,
        )
    refuse_overwriting(options.output, paths)
    state = averaging.average_checkpoints(
        paths, progress=lambda line: print(line, flush=True), exponential=options.ema
    )
    if options.share:
        state = averaging.for_sharing(state)
    averaging.save_checkpoint(state, options.output)
    print(f"wrote the average of {len(paths)} checkpoints to {options.output}")


def main(arguments: list[str] | None = None) -> int:
    return finish("average", run, parse_arguments(arguments))

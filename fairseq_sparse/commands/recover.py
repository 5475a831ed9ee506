"""Let a training resume that was killed while it saved.

Where checkpoint_last.pt was not written to its end, it is kept as checkpoint_last.pt.damaged, and
the newest checkpoint of the folder that is whole takes its place. Old checkpoints that fairseq
could not delete any more, by the --keep-last-epochs and --keep-interval-updates of the training,
are deleted. The recipes in examples/ do this by themselves; before fairseq-train, run it by hand.
Not while somebody trains there.
"""

import argparse
import os

from fairseq_sparse.commands.common import command_parser, finish


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("recover", __doc__)
    parser.add_argument("folder", metavar="SAVE_DIR", help="the --save-dir of fairseq-train")
    parser.add_argument(
        "--quiet", action="store_true", help="print nothing if there is nothing to do"
    )
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    if not os.path.isdir(options.folder):
        raise NotADirectoryError(f"{options.folder}: no such folder")
    from fairseq_sparse.checkpoints.recovery import recover_last_checkpoint, remove_outdated

    recovery = recover_last_checkpoint(options.folder)
    outdated = remove_outdated(options.folder)
    if recovery is not None:
        print(recovery)
    if outdated:
        names = ", ".join(map(os.path.basename, outdated))
        print(f"deleted {names}: older than what the training keeps")
    if recovery is None and not outdated and not options.quiet:
        print(
            f"nothing to do: no damaged checkpoint_last.pt and no outdated file in {options.folder}"
        )


def main(arguments: list[str] | None = None) -> int:
    return finish("recover", run, parse_arguments(arguments))

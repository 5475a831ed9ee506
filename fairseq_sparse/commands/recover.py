"""Repair a run that was killed while it saved, so that it can resume.

A damaged checkpoint_last.pt is kept as checkpoint_last.pt.damaged, and the newest intact checkpoint
of the folder takes its place. Old checkpoints that fairseq had no time to delete, given the run's
--keep-last-epochs and --keep-interval-updates, are deleted. The recipes in examples/ do this
automatically; without them, run this command before fairseq-train. Do not run it while a training
is running in the folder.
"""

import argparse
import os

from fairseq_sparse.commands.common import command_parser


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("recover", __doc__)
    parser.add_argument("folder", metavar="SAVE_DIR", help="the --save-dir of fairseq-train")
    text = "print nothing if there is nothing to do"
    parser.add_argument("--quiet", action="store_true", help=text)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    if not os.path.isdir(options.folder):
        raise NotADirectoryError(f"{options.folder}: no such folder")
    from fairseq_sparse.checkpoints.names import LAST
    from fairseq_sparse.checkpoints.recovery import recover_last_checkpoint, remove_outdated

    recovery = recover_last_checkpoint(options.folder)
    outdated = remove_outdated(options.folder)
    if recovery is not None:
        print(recovery)
    if outdated:
        names = ", ".join(map(os.path.basename, outdated))
        print(f"deleted {names}: older than the checkpoints that the training keeps")
    if recovery is not None or outdated or options.quiet:
        return
    if os.path.isfile(os.path.join(options.folder, LAST)):
        print(f"nothing to do: no damaged {LAST} and no outdated file in {options.folder}")
    else:
        print(f"{options.folder} has no {LAST}: is it the --save-dir? A training would start anew")

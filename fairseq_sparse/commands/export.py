"""Convert a checkpoint of a softmax model to one of stock fairseq, which needs no --user-dir.

The parameters stay unchanged: fairseq-generate --task translation gives the same translations. The
state of the optimizer is left out; continue training with --finetune-from-model. A model with an
output or attention other than softmax is refused.
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import command_parser, finish, refuse_overwriting


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("export", __doc__)
    parser.add_argument("input", metavar="CHECKPOINT", help="checkpoint of a model of this package")
    parser.add_argument("output", metavar="OUTPUT", help="the checkpoint to write")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.checkpoints.averaging import save_checkpoint
    from fairseq_sparse.checkpoints.exporting import export_checkpoint

    refuse_overwriting(options.output, [options.input])
    save_checkpoint(export_checkpoint(options.input), options.output)
    print(f"wrote {options.output}")


def main(arguments: list[str] | None = None) -> int:
    return finish("export", run, parse_arguments(arguments))

"""Convert a checkpoint for use without this package.

--to fairseq: a checkpoint of stock fairseq, which needs no --user-dir. The parameters stay
unchanged: fairseq-generate --task translation gives the same translations. The state of the
optimizer is left out; continue training with --finetune-from-model. A model with an output or
attention other than softmax is refused.

--to ctranslate2: a folder for CTranslate2, which serves translation models on a CPU. Any output
will do, with softmax attention: greedy translations are the same; a beam sees softmax
probabilities, without zeros and proofs, and fairseq-sparse rescore gives its candidates their
exact scores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser, refuse_overwriting


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("export", __doc__)
    parser.add_argument("input", metavar="CHECKPOINT", help="checkpoint of a model of this package")
    parser.add_argument("output", metavar="OUTPUT", help="the checkpoint or folder to write")
    parser.add_argument("--to", choices=("fairseq", "ctranslate2"), default="fairseq")
    parser.add_argument(
        "--data", metavar="DATA", help="for ctranslate2: folder of the dictionaries"
    )
    parser.add_argument(
        "--quantization", metavar="TYPE", help="for ctranslate2: int8, float16, ... (default: none)"
    )
    options = parser.parse_args(arguments)
    to_ctranslate2 = options.to == "ctranslate2"
    if to_ctranslate2 != bool(options.data) or (options.quantization and not to_ctranslate2):
        parser.error("--to ctranslate2 needs --data; --data and --quantization are for it alone")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.checkpoints.averaging import save_checkpoint
    from fairseq_sparse.checkpoints.ctranslate2 import convert_to_ctranslate2
    from fairseq_sparse.checkpoints.exporting import export_checkpoint

    refuse_overwriting(options.output, [options.input])
    if options.to == "fairseq":
        save_checkpoint(export_checkpoint(options.input), options.output)
    else:
        places = options.input, options.data, Path(options.output)
        convert_to_ctranslate2(*places, options.quantization)
    print(f"wrote {options.output}")

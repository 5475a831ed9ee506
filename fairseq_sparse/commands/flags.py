"""List every flag that fairseq's commands take with the --user-dir of this package."""

from __future__ import annotations

from fairseq_sparse.commands.common import command_parser


def main(arguments: list[str] | None = None) -> int:
    command_parser("flags", __doc__).parse_args(arguments)
    from fairseq_sparse.flag_list import list_flags

    print(list_flags(), end="")
    return 0

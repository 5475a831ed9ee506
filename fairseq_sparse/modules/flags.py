"""Flags that a dataclass describes, for models that are configured by ``add_args``."""

from argparse import ArgumentParser, Namespace
from dataclasses import fields

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

LARGEST_ALPHA = 1e6


def add_flags(parser: ArgumentParser, *configs: type[FairseqDataclass]) -> None:
    """Add the flags without defaults, so that architectures can set them."""
    for config in configs:
        gen_parser_from_dataclass(parser, config(), delete_default=True)


def set_flag_defaults(args: Namespace, *configs: type[FairseqDataclass]) -> None:
    """Fill in the flags that neither the user nor an architecture has set."""
    for config in configs:
        for flag in fields(config):
            if flag.name != "_name" and getattr(args, flag.name, None) is None:
                setattr(args, flag.name, flag.default)


def check_size_of_alpha(flag: str, alpha: float) -> None:
    """Refuse an alpha with which logits times alpha - 1 can be too large for fp32.

    Raises:
        ValueError: naming the flag.
    """
    if alpha > LARGEST_ALPHA:
        raise ValueError(
            f"{flag} must be at most {LARGEST_ALPHA:g}, got {alpha}: from 1000 on nothing but the "
            "largest entry is left"
        )

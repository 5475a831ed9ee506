"""List every flag that fairseq's commands take with the --user-dir of this package.

fairseq-train --help cannot list them: it prints its text before it adds the flags of --arch, --task
and --criterion, and has no hook in between.
"""

from __future__ import annotations

from argparse import Action, ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from typing import TYPE_CHECKING

from fairseq_sparse.commands.common import command_parser

if TYPE_CHECKING:
    from fairseq.dataclass import FairseqDataclass

_WIDTH = 100


def list_flags() -> str:
    """Return the flags with their values, defaults and help texts, grouped by component."""
    from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRScheduleConfig
    from fairseq.tasks.language_modeling import LanguageModelingConfig
    from fairseq.tasks.translation import TranslationConfig

    from fairseq_sparse.criterions.sparse_criterion import SparseCriterionConfig
    from fairseq_sparse.models import lstm_sparse, transformer_lm_sparse, transformer_sparse
    from fairseq_sparse.modules.attention_config import (
        AttentionConfig,
        GlobalAttentionConfig,
        SelfAttentionConfig,
    )
    from fairseq_sparse.modules.output_config import OutputConfig
    from fairseq_sparse.optim.reduce_lr_on_valid_loss import ReduceLROnValidLossConfig
    from fairseq_sparse.tasks.language_modeling_sparse import LanguageModelingSparseConfig
    from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig

    modules = transformer_sparse, lstm_sparse, transformer_lm_sparse
    transformer, lstm, language_model = map(_architectures, modules)
    schedule = ReduceLROnValidLossConfig, ReduceLROnPlateauLRScheduleConfig
    sections = [
        (f"output, of --arch {transformer}, {lstm}, {language_model}", OutputConfig, None),
        (f"attention, of --arch {transformer}", AttentionConfig, None),
        (f"attention, of --arch {language_model}", SelfAttentionConfig, None),
        (f"attention, of --arch {lstm}", GlobalAttentionConfig, None),
        ("--criterion entmax_loss, alpha_relu_loss", SparseCriterionConfig, None),
        ("--task translation_sparse", TranslationSparseConfig, TranslationConfig),
        ("--task language_modeling_sparse", LanguageModelingSparseConfig, LanguageModelingConfig),
        ("--lr-scheduler reduce_lr_on_valid_loss", *schedule),
    ]
    return "\n\n".join(_section(*section) for section in sections) + "\n"


def _architectures(module) -> str:
    """Return the names of the architectures whose model a module defines."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    models = ARCH_MODEL_REGISTRY.items()
    return ", ".join(sorted(arch for arch, x in models if x.__module__ == module.__name__))


def _section(
    title: str, config: type[FairseqDataclass], stock: type[FairseqDataclass] | None
) -> str:
    known = {name for action in _flags(stock) for name in action.option_strings} if stock else ()
    formatter = ArgumentDefaultsHelpFormatter(prog="", width=_WIDTH)
    formatter.start_section(title)
    formatter.add_arguments(
        action for action in _flags(config) if not known or known.isdisjoint(action.option_strings)
    )
    formatter.end_section()
    return formatter.format_help().strip()


def _flags(config: type[FairseqDataclass]) -> list[Action]:
    """Return the flags that fairseq derives from a dataclass."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    parser = ArgumentParser(add_help=False)
    gen_parser_from_dataclass(parser, config())
    return [action for action in parser._actions if action.option_strings]


def parse_arguments(arguments: list[str] | None) -> Namespace:
    return command_parser("flags", __doc__).parse_args(arguments)


def run(options: Namespace) -> None:
    print(list_flags(), end="")

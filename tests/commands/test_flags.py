"""``python -m fairseq_sparse flags`` against the flags that fairseq's parsers really get."""

import re
from argparse import ArgumentParser

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_sparse.commands import cli
from fairseq_sparse.commands.flags import list_flags
from fairseq_sparse.criterions.sparse_criterion import SparseCriterionConfig


def flags(add_args):
    parser = ArgumentParser(add_help=False)
    add_args(parser)
    return {name for action in parser._actions for name in action.option_strings}


def test_every_flag_of_ours_is_listed_and_no_other():
    ours = flags(lambda parser: gen_parser_from_dataclass(parser, SparseCriterionConfig()))
    for name in ("transformer", "lstm", "transformer_lm"):
        models = ARCH_MODEL_REGISTRY[f"{name}_sparse"], ARCH_MODEL_REGISTRY[name]
        own, stock = (flags(model.add_args) for model in models)
        ours |= own - stock
    for name in ("translation", "language_modeling"):
        tasks = TASK_REGISTRY[f"{name}_sparse"], TASK_REGISTRY[name]
        own, stock = (flags(task.add_args) for task in tasks)
        ours |= own - stock
    own, stock = (
        flags(LR_SCHEDULER_REGISTRY[name].add_args)
        for name in ("reduce_lr_on_valid_loss", "reduce_lr_on_plateau")
    )
    ours |= own - stock
    assert set(re.findall(r"^  (--[\w-]+)", list_flags(), re.MULTILINE)) == ours


def test_all_that_is_registered_is_named():
    named = set(re.findall(r"[\w-]+", list_flags()))
    for registry in (
        ARCH_MODEL_REGISTRY,
        CRITERION_REGISTRY,
        TASK_REGISTRY,
        LR_SCHEDULER_REGISTRY,
    ):
        for name, item in registry.items():
            assert not item.__module__.startswith("fairseq_sparse.") or name in named


def test_the_command_prints_the_list(capsys):
    assert cli.main(["flags"]) == 0
    assert capsys.readouterr().out == list_flags()

"""Lets fairseq read the flags of its commands before any of them starts.

A misspelt flag of ``--set`` would otherwise be found after the preparation, or by ``generate``
after the training.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import NoReturn

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.plan import USER_DIR, Command
from fairseq_sparse.recipes.processes import load_fairseq

# The programs whose flags a user can set, and their parsers in fairseq.options.
_PARSERS = {
    "fairseq-train": "get_training_parser",
    "fairseq-generate": "get_generation_parser",
    "fairseq-eval-lm": "get_eval_lm_parser",
    "fairseq-interactive": "get_interactive_generation_parser",
}


def check_flags(commands: Iterable[Command]) -> None:
    """Refuse flags that fairseq does not know, and values that they cannot have.

    Raises:
        RecipeError: with fairseq's words.
    """
    for command in commands:
        words = list(map(str, command.argv))
        if program := next(filter(_PARSERS.__contains__, words), ""):
            _check(program, words[words.index(program) + 1 :])


def _check(program: str, words: list[str]) -> None:
    load_fairseq()
    from fairseq import options, utils

    def refuse(message: str) -> NoReturn:
        raise RecipeError(f"{program}: {message}")

    utils.import_user_module(Namespace(user_dir=str(USER_DIR)))
    parser = getattr(options, _PARSERS[program])()
    parser.error = refuse  # otherwise argparse would print all of fairseq's flags first
    try:
        options.parse_args_and_arch(parser, words)
    except RecipeError:
        raise
    except Exception as error:  # fairseq evaluates the text of lists, such as --lr, as Python
        refuse(f"a flag has a value that cannot be read ({type(error).__name__}: {error})")

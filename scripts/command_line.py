"""Import path for the scripts of a checkout, and functions shared by the commands."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_sparse.commands.common import (  # noqa: E402, F401
    add_plots,
    check_outputs,
    exit_status,
    one_line,
    report_errors,
    with_progress,
)
from fairseq_sparse.commands.models import (  # noqa: E402, F401
    add_max_tokens,
    add_paths,
    load_one_model,
    name_models,
)
from fairseq_sparse.commands.values import (  # noqa: E402, F401
    numbers,
    output_file,
    positive,
    seed,
    setting,
    words,
)
from fairseq_sparse.files import (  # noqa: E402, F401
    lines_of,
    read_text,
    replacing,
    write_text,
)


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script, whose description is shown with its line breaks."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages and warnings of fairseq about every model that it builds."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


if __name__ == "__main__":
    raise SystemExit("command_line.py is not a command: it is a part of the other scripts")

import gc
import itertools
import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

import fork_python  # noqa: F401  so that pytest's workers share one server

# The assertions of these helpers then show the compared values.
pytest.register_assert_rewrite("table_options")

HERE = Path(__file__).parent
# Files that take long, longest first: pytest's workers begin with them. A new one may be missing.
SLOWEST = (
    "examples/test_quickstart.py",
    "test_generation_options.py",
    "test_command_line.py",
    "test_real_starts.py",
)

# No deadline: a busy machine is no failure. Derandomised: a run can be repeated. The profile
# `random`, used by scripts/test_matrix.sh, draws other examples each time, and more of them.
hypothesis.settings.register_profile(
    "tests", deadline=None, max_examples=50, derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "random", deadline=None, max_examples=400, database=None, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


# scripts/test_matrix.sh varies these two.
SEED = int(os.environ.get("TEST_SEED", 1))
THREADS = int(os.environ.get("TEST_THREADS", 1))


def pytest_configure():
    torch.set_num_threads(THREADS)


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items):
    def turn(item):
        path = item.path.relative_to(HERE).as_posix()
        return SLOWEST.index(path) if path in SLOWEST else len(SLOWEST)

    items.sort(key=turn)
    grids = {"pairwise": (2, defaultdict(list)), "each_value": (1, defaultdict(list))}
    for item in items:
        kept = item.get_closest_marker("slow_except")
        if kept and item.callspec.id not in kept.args:
            item.add_marker(pytest.mark.slow)
        if torch.cuda.is_available():
            continue
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        elif hasattr(item, "callspec"):
            for mark, (_, tests) in grids.items():
                if item.get_closest_marker(mark):
                    tests[item.path, item.originalname].append(item)
    for count, tests in grids.values():
        for combinations in tests.values():
            for item in not_needed(combinations, count):
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Freeze tests and libraries, which the garbage collector would otherwise search."""
    gc.collect()
    gc.freeze()


def not_needed(items, count):
    """Return the items not needed to cover every value, or pair of values (``count`` 2)."""
    others = list(items)
    values = {item: [(x, repr(y)) for x, y in item.callspec.params.items()] for item in items}
    parts = {item: {*itertools.combinations(values[item], count)} for item in items}
    counted = {item: [*values[item], *itertools.combinations(values[item], 2)] for item in items}
    missing, taken = set().union(*parts.values()), Counter()
    while missing:
        # Among equal items, take the one whose values, and pairs of them, were taken least often.
        best = max(
            others,
            key=lambda item: (len(parts[item] & missing), -sum(taken[x] for x in counted[item])),
        )
        others.remove(best)
        missing -= parts[best]
        taken.update(counted[best])
    return others if all(parts.values()) else []


@pytest.fixture(autouse=True)
def seed():
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return the folder of a small binarised task; tests must not change it."""
    import toy  # imports fairseq, which takes seconds and which not all tests need

    return toy.binarised_text(tmp_path_factory.mktemp("text"))

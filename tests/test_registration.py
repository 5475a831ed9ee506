"""Registration with fairseq in any order of imports; and ops, which do not load fairseq."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from fork_python import PYTHON

ROOT = Path(__file__).resolve().parents[1]
REGISTERED = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.tasks import TASK_REGISTRY
assert {"transformer_sparse", "lstm_sparse", "transformer_lm_sparse"} <= set(ARCH_MODEL_REGISTRY)
assert {"entmax_loss", "alpha_relu_loss"} <= set(CRITERION_REGISTRY)
assert {"translation_sparse", "language_modeling_sparse"} <= set(TASK_REGISTRY)
assert "reduce_lr_on_valid_loss" in LR_SCHEDULER_REGISTRY
"""


def run(script, cwd=ROOT):
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


def test_ops_load_no_fairseq_and_leave_logging_alone():
    result = run(
        "import logging, sys\n"
        "before = logging.root.level, logging.root.handlers[:]\n"
        "import torch\n"
        "import fairseq_sparse.ops\n"
        "fairseq_sparse.ops.entmax15(torch.zeros(2))\n"
        "assert all(hasattr(fairseq_sparse.ops, name) for name in fairseq_sparse.ops.__all__)\n"
        "heavy = {'fairseq', 'hydra', 'omegaconf', 'sacrebleu'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert (logging.root.level, logging.root.handlers) == before\n"
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_layers_that_need_no_fairseq_work_without_it():
    run(
        "import sys\n"
        "sys.modules['fairseq'] = None\n"
        "import torch\n"
        "from fairseq_sparse.modules import *\n"
        "layer = OutputProjection(torch.nn.Linear(4, 6), 'alpha_relu', tau=0.5)\n"
        "features, target = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.long)\n"
        "loss, statistics = layer.loss(features, OutputLoss(target, padding=0))\n"
        "assert loss.isfinite() and statistics['tokens'] == 6\n"
        "assert 'SparseMultiheadAttention' not in globals() and 'rela_g' in ATTENTION_KINDS\n"
    )


def test_the_first_import_of_fairseq_registers_once_and_only_when_it_succeeds(tmp_path):
    broken = tmp_path / "fairseq"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken')\n")
    run(
        "import importlib.util, sys\n"
        "import fairseq_sparse.ops\n"
        "from fairseq_sparse.registration import _FairseqFinder\n"
        "ours = lambda: [f for f in sys.meta_path if isinstance(f, _FairseqFinder)]\n"
        "assert importlib.util.find_spec('fairseq').loader\n"  # finds fairseq without importing it
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "try: import fairseq\n"
        "except ImportError as error: assert str(error) == 'broken'\n"
        "assert len(ours()) == 1\n"
        "del sys.path[0]\n"
        "importlib.invalidate_caches()\n"
        f"import fairseq\n{REGISTERED}"
        "assert not ours()\n",
        cwd=tmp_path.parent,
    )


@pytest.mark.parametrize("command", ["train", "generate"])
def test_a_user_dir_of_another_name_is_refused_with_the_right_one(tmp_path, command):
    (tmp_path / "plugin").symlink_to(ROOT / "fairseq_sparse")
    arguments = ["-m", f"fairseq_cli.{command}", str(tmp_path), "--path", "none"]
    arguments = arguments[: 3 if command == "train" else 5]
    result = subprocess.run(
        [PYTHON, *arguments, "--user-dir", str(tmp_path / "plugin")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("ImportError") and str(ROOT / "fairseq_sparse") in error


WAYS_IN = {
    "ops before --user-dir": (
        "import fairseq_sparse.ops, argparse\n"
        "from fairseq.utils import import_user_module\n"
        f"import_user_module(argparse.Namespace(user_dir={str(ROOT / 'fairseq_sparse')!r}))"
    ),
    "a model": "from fairseq_sparse.models.transformer_sparse import TransformerSparseModel",
    "a layer": "from fairseq_sparse.modules import OutputProjection, SparseMultiheadAttention",
    "a flag": "import fairseq_sparse.modules.model_settings",
    "a criterion": "import fairseq_sparse.criterions.sparse_criterion",
    "a scheduler": "import fairseq_sparse.optim.reduce_lr_on_valid_loss",
    "generation": "from fairseq_sparse.generation.sparse_search import SparseSearch",
    "energy": "import fairseq_sparse.tasks.energy\nimport fairseq",
}


def a_pickled_config():
    """Return code that unpickles a config, as a worker does before it reads ``--user-dir``."""
    from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig

    return f"import pickle\npickle.loads({pickle.dumps(TranslationSparseConfig())!r})"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_every_way_in_registers():
    ways = WAYS_IN | {"a pickled config": a_pickled_config()}
    # One process loads the libraries that fairseq needs, and forks a child for each import.
    result = run(
        "import os, sys, traceback, torch, hydra, omegaconf, sacrebleu, numpy\n"
        f"for name, way in {ways!r}.items():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        f"            exec(way)\n            exec({REGISTERED!r})\n"
        "        except BaseException:\n"
        "            traceback.print_exc()\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    print(name, os.waitpid(child, 0)[1])\n"
    )
    exits = dict(line.rsplit(" ", 1) for line in result.stdout.splitlines())
    assert exits == dict.fromkeys(ways, "0"), result.stderr

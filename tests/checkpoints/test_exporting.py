"""Softmax models exported as checkpoints of stock fairseq."""

import json
import os
import subprocess
from argparse import Namespace

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models.lstm import LSTMModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq_cli import train

import frozen_checkpoints as frozen
import toy
from checkpoints import make_state, write
from commands import generate, hypotheses
from fairseq_sparse.checkpoints.exporting import export_checkpoint
from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.commands import cli
from fairseq_sparse.errors import CheckpointError
from fork_python import PYTHON

SETS = sorted(folder.name for folder in frozen.FOLDER.glob("set*"))
SPARSE = {
    "sparsemax_rela_i": "--output-transform sparsemax",
    "entmax15_topk": "--output-transform entmax15",
    "entmax_learned_alpha": "--output-transform entmax",
    "alpha_relu_rela_g": "--output-transform alpha_relu",
    "lstm_alpha_relu": "--output-transform alpha_relu",
    "lm_entmax15_rela_i": "--output-transform entmax15",
}


def of(folder, name, tmp_path):
    return frozen.unpack(frozen.FOLDER / folder / f"{name}.pt.gz", tmp_path)


def stock(command, data, *flags):
    """Run one of fairseq's commands where this package cannot be imported."""
    code = f"import sys; sys.modules['fairseq_sparse'] = None; from fairseq_cli import {command}"
    arguments = [data, "--cpu", "--num-workers", "0", "--no-progress-bar", *flags]
    return subprocess.run(
        [PYTHON, "-c", f"{code}; {command}.cli_main()", *map(str, arguments)],
        # Without it, stock fairseq cannot load its own checkpoints under torch 2.6 and later.
        env={**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        **{"capture_output": True, "text": True, "check": True},
    )


@pytest.mark.slow_except("set1-py311")
@pytest.mark.parametrize("folder", SETS)
def test_stock_fairseq_translates_with_an_exported_checkpoint(folder, tmp_path, capsys):
    path = of(folder, "softmax", tmp_path)
    before = path.read_bytes()
    assert cli.run("export", [str(path), str(tmp_path / "stock.pt")]) == 0
    assert path.read_bytes() == before and "wrote" in capsys.readouterr().out
    flags = ("--task", "translation", "--path", tmp_path / "stock.pt", "--beam", 3)
    # The last flag: fairseq-fixed's own tasks would leave sentences out.
    flags += ("--max-len-b", 9, "--batch-size", 4, "--required-batch-size-multiple", 1)
    found = hypotheses(stock("generate", frozen.DATA, *flags).stdout)
    expected = json.loads((frozen.FOLDER / folder / "expected.json").read_text())
    for number, (score, words) in enumerate(expected["softmax"]["translations"]):
        assert found[number] == [(pytest.approx(score, abs=2e-4), words)]


def test_stock_fairseq_knows_all_that_is_in_an_exported_checkpoint(tmp_path):
    """fairseq builds the criterion from it too, and its settings do not name this package."""
    path = of(SETS[0], "softmax", tmp_path)
    assert cli.run("export", [str(path), str(tmp_path / "stock.pt")]) == 0
    state = load_checkpoint(tmp_path / "stock.pt")
    assert "sparse" not in str(state["cfg"]) and "last_optimizer_state" not in state
    assert not {"output_transform", "exact_search"} & set(vars(state["cfg"]["model"]))
    assert state["cfg"]["criterion"]["label_smoothing"] == 0.1
    flags = ("--task", "translation", "--path", tmp_path / "stock.pt", "--batch-size", 8)
    stock("validate", frozen.DATA, *flags)  # fails where the criterion is not stock's


_LSTM = "--output-transform softmax --attention softmax --criterion entmax_loss"
_LM = "--output-transform softmax --attention softmax --criterion cross_entropy"


@pytest.mark.parametrize(
    ("name", "flags", "stock_model"),
    [
        ("lstm_alpha_relu", _LSTM, LSTMModel),
        ("lm_entmax15_rela_i", _LM, TransformerLanguageModel),
    ],
)
def test_other_models_are_stocks_own_after_it(name, flags, stock_model, tmp_path):
    flags = [*frozen.FLAGS[name].split(), *flags.split(), "--optimizer", "adam", "--lr", 0.01]
    flags += ["--batch-size", 8, "--max-update", 2, "--save-dir", tmp_path]
    frozen.run(train, frozen.DATA, *flags)
    ours = tmp_path / "checkpoint_last.pt"
    assert cli.run("export", [str(ours), str(tmp_path / "stock.pt")]) == 0
    models = []
    for path in (ours, tmp_path / "stock.pt"):
        (model,), _, _ = load_model_ensemble_and_task(
            [str(path)], arg_overrides={"data": str(frozen.DATA)}
        )
        models.append(model.eval())
    assert type(models[1]) is stock_model is not type(models[0])
    tokens = torch.randint(4, 24, (2, 5))
    inputs = (tokens,) if stock_model is TransformerLanguageModel else (tokens, None, tokens)
    if stock_model is LSTMModel:
        inputs = (tokens, torch.tensor([5, 5]), tokens)
    with torch.no_grad():
        outputs = [model(*inputs)[0] for model in models]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_model_is_refused_by_name(name, tmp_path, capsys):
    path, output = of(SETS[-1], name, tmp_path), tmp_path / "stock.pt"
    assert cli.run("export", [str(path), str(output)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and SPARSE[name] in line and not output.exists()


@pytest.mark.parametrize("place", ["attention", "attention_dec"])
def test_sparse_attention_is_refused_by_name(place, tmp_path):
    fields = {"output_transform": "softmax", place: "rela_g"}
    (path,) = write(tmp_path, [make_state(**fields)])
    with pytest.raises(CheckpointError, match=f"--{place.replace('_', '-')} rela_g"):
        export_checkpoint(path)


def test_an_lstm_with_the_bias_that_stock_lacks_is_refused_by_name(tmp_path):
    args = toy.flags("--output-transform", "softmax", arch="lstm_sparse_mt")
    assert args.attention_bias
    (path,) = write(tmp_path, [make_state(**vars(args))])
    with pytest.raises(CheckpointError, match="--attention-bias"):
        export_checkpoint(path)


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_the_task_becomes_stocks(task, tmp_path):
    state = make_state(output_transform="softmax")
    flags = {"perplexity_epsilon": 0.1, "sampling_minp": 0.0, "data": "here"}
    state["cfg"].update(task={"_name": f"{task}_sparse", **flags}, common={}, criterion={})
    (path,) = write(tmp_path, [state])
    assert export_checkpoint(path)["cfg"]["task"] == {"_name": task, "data": "here"}


@pytest.mark.parametrize("kind", [Namespace, dict])
@pytest.mark.parametrize("task", ["translation_multi_simple_epoch", "multilingual_sparse"])
def test_a_task_with_add_args_is_stocks_or_refused(task, kind, tmp_path):
    state = make_state(output_transform="softmax")
    criterion = {"_name": "adaptive_loss", "sentence_avg": False}
    settings = kind(_name=task, task=task, sampling_minp=0.0)
    state["cfg"].update(task=settings, common={}, criterion=criterion)
    (path,) = write(tmp_path, [state])
    if task == "multilingual_sparse":
        with pytest.raises(CheckpointError, match="--task multilingual_sparse, which stock"):
            export_checkpoint(path)
    else:
        cfg = export_checkpoint(path)["cfg"]
        assert cfg["task"] == kind(_name=task, task=task) and cfg["criterion"] == criterion


def test_what_is_not_of_this_package_is_refused(tmp_path, capsys):
    state = make_state(output_transform="softmax")
    state["cfg"]["model"].arch = "transformer"
    (path,) = write(tmp_path, [state])
    with pytest.raises(CheckpointError, match="not a checkpoint of a fairseq_sparse model"):
        export_checkpoint(path)
    assert cli.run("export", [path, path]) == 1
    assert "is an input, and would be overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["task", "common", "criterion", "model"])
@pytest.mark.parametrize("value", [None, Namespace(), "none"])
def test_a_damaged_checkpoint_is_refused(name, value, tmp_path):
    state = make_state(output_transform="softmax")
    state["cfg"].update(common={}, criterion={})
    part = state if name == "model" else state["cfg"]
    del part[name]
    if value != "none":
        part[name] = value
    (path,) = write(tmp_path, [state])
    if isinstance(value, Namespace) and name == "criterion":
        export_checkpoint(path)  # one with add_args
        return
    with pytest.raises(CheckpointError, match=str(path)):
        export_checkpoint(path)


@pytest.fixture(scope="module", params=["entmax15", "alpha_relu"])
def sparse_checkpoint(request, data, tmp_path_factory):
    criterion = {"entmax15": "entmax_loss", "alpha_relu": "alpha_relu_loss"}[request.param]
    flags = ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    flags += ["--output-transform", request.param, "--criterion", criterion]
    return toy.train(tmp_path_factory.mktemp("model"), data, *flags)[0]


# Tokens that are compared: a model that never ends is cut off elsewhere.
LIMIT = 100


def test_ctranslate2_finds_the_same_greedy_translations(data, sparse_checkpoint, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    own = hypotheses(generate(data, sparse_checkpoint, "--beam", 1).stdout)
    source = (data.parent / "test.de").read_text(encoding="utf-8").splitlines()

    def translate(*flags):
        output = tmp_path / f"model{len(flags)}"
        words = [sparse_checkpoint, output, "--to", "ctranslate2", "--data", data, *flags]
        for _ in range(2):  # an earlier one is replaced, behind a link, too
            if output.is_dir():
                elsewhere = output.rename(tmp_path / f"elsewhere{len(flags)}")
                output.symlink_to(elsewhere)
            assert cli.run("export", [str(word) for word in words]) == 0
        translator = ctranslate2.Translator(str(output), intra_threads=1)
        found = translator.translate_batch([line.split() for line in source], beam_size=1)
        return [result.hypotheses[0][:LIMIT] for result in found]

    assert translate() == [own[n][0][1].split()[:LIMIT] for n in range(len(source))]
    assert len(translate("--quantization", "int8")) == len(source)  # rounded: others may win


def test_other_files_are_not_replaced_by_an_export(data, sparse_checkpoint, tmp_path, capsys):
    pytest.importorskip("ctranslate2")
    (tmp_path / "notes.txt").write_text("mine")
    words = [sparse_checkpoint, tmp_path, "--to", "ctranslate2", "--data", data]
    assert cli.run("export", [str(word) for word in words]) == 1
    assert "notes.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["alpha_relu_rela_g", "entmax_learned_alpha"])
def test_other_attention_is_not_exported_to_ctranslate2(name, tmp_path, capsys):
    path = of(SETS[0], name, tmp_path)
    words = [path, tmp_path / "model", "--to", "ctranslate2", "--data", frozen.DATA]
    assert cli.run("export", [str(word) for word in words]) == 1
    assert "--attention" in capsys.readouterr().err and not (tmp_path / "model").exists()

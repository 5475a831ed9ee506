"""A user's own output transform works in fairseq's commands and in the analysis."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import toy
from commands import generate, hypotheses, logged
from fairseq_sparse.commands import cli
from fairseq_sparse.modules.output_projection import OutputLoss, OutputProjection
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

# A user's code: a sparse transform that takes --output-alpha, and its loss.
SQUARES = '''
import torch.nn.functional as F

from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS, OutputTransform


class Squares(OutputTransform):
    """p proportional to the square of [z - max z + alpha]_+, trained by cross-entropy."""

    takes_alpha = True

    def probs(self, logits):
        z = logits.float()
        squares = (z - z.amax(-1, keepdim=True) + self.alpha).clamp(min=0).square()
        return squares / squares.sum(-1, keepdim=True)

    def loss(self, logits, target, label_smoothing, ignore_index, reduction):
        options = {"ignore_index": ignore_index, "reduction": reduction}
        return F.cross_entropy(logits.float(), target, label_smoothing=label_smoothing, **options)


OUTPUT_TRANSFORMS["squares"] = Squares
'''
FLAGS = ("--output-transform", "squares", "--output-alpha", 1.25)


@pytest.fixture(scope="module")
def user_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "squares_for_fairseq"
    folder.mkdir()
    (folder / "__init__.py").write_text(SQUARES)
    return folder


@pytest.fixture
def squares(user_dir):
    """Register the transform in this process for one test."""
    spec = importlib.util.spec_from_file_location(user_dir.name, user_dir / "__init__.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield
    del OUTPUT_TRANSFORMS["squares"]


def train(data, user_dir, folder, *flags, check=True):
    return toy.run(
        "fairseq_cli.train",
        *(data, "--user-dir", user_dir, "--save-dir", folder, "--cpu", "--num-workers", 0),
        *("--task", "translation_sparse", "--arch", "transformer_sparse_tiny", "--lr", 0.01),
        *("--optimizer", "adam", "--max-tokens", 300, "--max-update", 8, "--log-format", "json"),
        *flags,
        check=check,
    )


@pytest.fixture(scope="module")
def trained(data, user_dir, tmp_path_factory) -> tuple[Path, str]:
    """A checkpoint and the output of its training."""
    folder = tmp_path_factory.mktemp("run")
    flags = (*FLAGS, "--criterion", "entmax_loss", "--log-interval", 1)
    result = train(data, user_dir, folder, *flags)
    return folder / "checkpoint_last.pt", result.stdout + result.stderr


def test_it_trains_and_generates(trained, data, user_dir):
    checkpoint, output = trained
    losses = [float(record["loss"]) for record in logged(output, "train_inner")]
    assert len(losses) == 8 and losses[-1] < losses[0]
    record = logged(output, "valid")[-1]
    assert float(record["valid_prob_sum"]) == 1 and "valid_tau" not in record
    assert 1 <= float(record["valid_nonzeros"]) < 54
    found = hypotheses(generate(data, checkpoint, "--user-dir", user_dir).stdout)
    assert len(found) == 30
    refused = generate(
        data, checkpoint, "--user-dir", user_dir, "--task", "translation", check=False
    )
    assert "--output-transform squares" in refused.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("criterion", ["cross_entropy", "alpha_relu_loss"])
def test_its_criterion_is_the_one_that_it_names(criterion, squares):
    with pytest.raises(ValueError, match="does not fit.* squares.* use --criterion entmax_loss"):
        toy.model(*FLAGS, criterion=criterion)


ARCHITECTURES = ("transformer_sparse_tiny", "lstm_sparse", "transformer_lm_sparse")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_flags_know_it_only_where_it_is(arch, user_dir, request):
    with pytest.raises(SystemExit):
        toy.flags(*FLAGS, arch=arch)
    request.getfixturevalue("squares")
    args = toy.flags(*FLAGS, arch=arch)
    assert (args.output_transform, args.output_alpha) == ("squares", 1.25)


def test_a_model_refuses_an_option_that_it_does_not_take(squares):
    assert toy.model(*FLAGS).decoder.output_projection.transform.alpha == 1.25
    message = "--output-algorithm sort is for sparsemax, entmax15 and entmax"
    with pytest.raises(ValueError, match=message):
        toy.model(*FLAGS, "--output-algorithm", "sort")


def test_analysis_knows_it(trained, data, tmp_path, squares):
    out = tmp_path / "out.json"
    arguments = (data, "--path", trained[0], "--beams", 2, "--json", out, "--cpu")
    assert cli.run("analyze support", [str(argument) for argument in arguments]) == 0
    result = json.loads(out.read_text())
    (row,) = result["forced"]
    assert row["output"] == "squares (α 1.25)" and row["prob_sum"]["mean"] == pytest.approx(1)
    assert 0 < row["zeros"] < 1
    assert 0 <= result["searched"][0]["beams"]["2"]["exact"] <= 1


def test_a_transform_without_alpha_refuses_one(squares, monkeypatch):
    monkeypatch.setattr(OUTPUT_TRANSFORMS["squares"], "takes_alpha", False)
    with pytest.raises(ValueError, match="has no alpha, so --output-alpha 1.7 has no effect"):
        OutputProjection(nn.Linear(4, 6), "squares", alpha=1.7)


def test_zeros_and_gradients_of_the_new_transform(squares):
    layer = OutputProjection(nn.Linear(8, 20), "squares", alpha=1.1)
    features = 3 * torch.randn(5, 8)
    target = torch.randint(20, (5,))
    log_probs = layer.transform.log_probs(layer(features))
    torch.testing.assert_close(log_probs, layer.transform.probs(layer(features)).log())
    assert log_probs.isneginf().any()
    loss, _ = layer.loss(features[None], OutputLoss(target[None], padding=1))
    options = {"label_smoothing": 0.0, "ignore_index": 1, "reduction": "sum"}
    expected = layer.transform.loss(layer(features), target, **options)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert layer.weight.grad.abs().sum() > 0

"""The learning rate follows the validation loss, whatever chooses the best checkpoint."""

import json
import math

import pytest
import torch
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRScheduleConfig

import toy
from fairseq_sparse.optim.reduce_lr_on_valid_loss import ReduceLROnValidLossSchedule

FLAGS = (
    *("--task", "translation_sparse", "--arch", "lstm_sparse", "--criterion", "entmax_loss"),
    *("--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--decoder-out-embed-dim", 16),
    *("--output-transform", "entmax15", "--attention", "entmax15", "--seed", 4, "--lr", 0.1),
    *("--lr-scheduler", "reduce_lr_on_valid_loss", "--lr-shrink", 0.5, "--lr-threshold", 0),
    *("--best-checkpoint-metric", "sentence_accuracy", "--maximize-best-checkpoint-metric"),
    *("--log-format", "json", "--max-update", 1000),
)


def records(log, key):
    """The records of a JSON log that have a key."""
    found = [line[line.index('{"') :] for line in log.splitlines() if '{"' in line]
    return [record for record in map(json.loads, found) if key in record]


def validation(log):
    return records(log, "valid_loss")


def train(folder, data, epochs):
    return toy.train(folder, data, *FLAGS, "--max-epoch", epochs)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy.binarised_text(tmp_path_factory.mktemp("text"), pairs=200)


def learning_rates(log):
    """Those that the epochs were trained with."""
    return [float(record["train_lr"]) for record in records(log, "train_lr")]


def test_it_is_halved_after_each_epoch_whose_loss_is_no_new_best(data, tmp_path):
    log = train(tmp_path, data, 9)[1]
    losses = [float(record["valid_loss"]) for record in validation(log)]
    assert len(set(losses)) == len(losses), "as printed, rounding hides which is the better"
    accuracies = [float(record["valid_sentence_accuracy"]) for record in validation(log)]
    expected, rate, best = [], 0.1, float("inf")
    for loss in losses:
        expected.append(rate)
        if loss >= best:
            rate /= 2
        best = min(best, loss)
    assert learning_rates(log) == pytest.approx(expected)
    assert len(set(expected)) > 1, "no epoch was worse: the test shows nothing"
    # By accuracy, which stock's schedule would follow, the rates would be others.
    assert [a > max(accuracies[:i], default=-1) for i, a in enumerate(accuracies)] != [
        loss < min(losses[:i], default=float("inf")) for i, loss in enumerate(losses)
    ]


def test_a_resumed_run_goes_on_as_an_undisturbed_one(data, tmp_path):
    whole, log = train(tmp_path / "whole", data, 6)
    parts, first = train(tmp_path / "parts", data, 3)
    second = train(tmp_path / "parts", data, 6)[1]
    assert learning_rates(first) + learning_rates(second) == learning_rates(log)
    assert len(set(learning_rates(log)[:5])) > 1
    whole, parts = (torch.load(path, weights_only=False)["model"] for path in (whole, parts))
    for name, value in whole.items():
        assert torch.equal(value, parts[name]), name


@pytest.mark.parametrize(
    ("flag", "value"),
    [("lr_shrink", value) for value in (0, 1, 1.5, -0.5, math.nan)] + [("lr_patience", -1)],
)
def test_flags_out_of_range_are_refused_by_name(flag, value):
    cfg = ReduceLROnPlateauLRScheduleConfig(lr=[0.1], **{flag: value})
    with pytest.raises(ValueError, match="--" + flag.replace("_", "-")):
        ReduceLROnValidLossSchedule(cfg, None)

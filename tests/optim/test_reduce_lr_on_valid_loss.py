"""The learning rate follows the validation loss, whatever metric selects the best checkpoint."""

import json
import math
import shutil

import pytest
import torch
from fairseq.logging import metrics
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf

import toy
from fairseq_sparse.optim.reduce_lr_on_valid_loss import (
    ReduceLROnValidLossConfig,
    ReduceLROnValidLossSchedule,
)

FLAGS = (
    *("--task", "translation_sparse", "--arch", "lstm_sparse", "--criterion", "entmax_loss"),
    *("--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--decoder-out-embed-dim", 16),
    *("--output-transform", "entmax15", "--attention", "entmax15", "--seed", 4, "--lr", 0.1),
    *("--lr-scheduler", "reduce_lr_on_valid_loss", "--lr-shrink", 0.5, "--lr-threshold", 0),
    *("--best-checkpoint-metric", "sentence_accuracy", "--maximize-best-checkpoint-metric"),
    *("--log-format", "json", "--max-update", 1000, "--max-tokens-valid", 60),
)


def records(log, key):
    """Return the records of a JSON log that have a key."""
    found = [line[line.index('{"') :] for line in log.splitlines() if '{"' in line]
    return [record for record in map(json.loads, found) if key in record]


def validation(log):
    return records(log, "valid_loss")


def train(folder, data, epochs, *flags):
    return toy.train(folder, data, *FLAGS, "--max-epoch", epochs, *flags)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy.binarised_text(tmp_path_factory.mktemp("text"), pairs=200)


def learning_rates(log):
    """Return the learning rate of each epoch."""
    return [float(record["train_lr"]) for record in records(log, "train_lr")]


@pytest.mark.slow
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
    # fairseq's own schedule would follow the accuracy, which gives other rates.
    assert [a > max(accuracies[:i], default=-1) for i, a in enumerate(accuracies)] != [
        loss < min(losses[:i], default=float("inf")) for i, loss in enumerate(losses)
    ]


@pytest.mark.slow
def test_a_resumed_run_goes_on_as_an_undisturbed_one(data, tmp_path):
    whole, log = train(tmp_path / "whole", data, 6)
    parts, first = train(tmp_path / "parts", data, 3)
    second = train(tmp_path / "parts", data, 6)[1]
    assert learning_rates(first) + learning_rates(second) == learning_rates(log)
    assert len(set(learning_rates(log)[:5])) > 1
    whole, parts = (torch.load(path, weights_only=False)["model"] for path in (whole, parts))
    for name, value in whole.items():
        assert torch.equal(value, parts[name]), name


WITHIN_EPOCHS = (
    *("--lr-compare-with", "previous", "--log-interval", 1),
    *("--validate-interval-updates", 2, "--save-interval-updates", 2),
    *("--validate-interval", 1000, "--save-interval", 1000),
)


def rates_of_updates(log):
    """Return the learning rate that was logged after each update, by the update's number."""
    return {int(r["num_updates"]): float(r["lr"]) for r in records(log, "lr")}


@pytest.fixture(scope="module")
def trained_within_epochs(data, tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), data, 8, *WITHIN_EPOCHS)


def test_it_is_halved_after_each_validation_whose_loss_rises(trained_within_epochs):
    _, log = trained_within_epochs
    losses = {int(r["valid_num_updates"]): float(r["valid_loss"]) for r in validation(log)}
    last = max(losses)
    assert sorted(losses) == list(range(2, last + 1, 2)) and last >= 16
    # The rate that is logged after an update is the one that the next update uses.
    rates, expected, rate, previous, rises = rates_of_updates(log), {}, 0.1, math.inf, set()
    for update in range(1, last + 1):
        if update - 1 in losses:
            if losses[update - 1] > previous:
                rate /= 2
                rises.add(update - 1)
            previous = losses[update - 1]
        expected[update] = rate
    assert {update: rates[update] for update in expected} == pytest.approx(expected)
    assert rises, "no loss rose: the test shows nothing"


@pytest.mark.slow
def test_a_run_that_resumes_within_an_epoch_goes_on_as_an_undisturbed_one(
    data, trained_within_epochs, tmp_path
):
    whole, log = trained_within_epochs
    losses = {int(r["valid_num_updates"]): float(r["valid_loss"]) for r in validation(log)}
    # A checkpoint that was written right after a validation whose loss rose.
    updates = {int(path.stem.rpartition("_")[2]): path for path in whole.parent.glob("*_*_*.pt")}
    update = min(n for n in updates if losses[n] > losses.get(n - 2, math.inf))
    shutil.copyfile(updates[update], tmp_path / "checkpoint_last.pt")
    parts, second = train(tmp_path, data, 8, *WITHIN_EPOCHS)
    undisturbed = {n: rate for n, rate in rates_of_updates(log).items() if n > update}
    assert rates_of_updates(second) == undisturbed
    whole, parts = (torch.load(path, weights_only=False)["model"] for path in (whole, parts))
    for name, value in whole.items():
        assert torch.equal(value, parts[name]), name


def make_optimizer():
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    cfg = OmegaConf.structured(FairseqAdamConfig(lr=[1.0], tpu=False))
    return FairseqAdam(cfg, parameters)


@pytest.mark.parametrize(
    ("compare_with", "expected"),
    [("best", [1, 1, 0.5, 0.25, 0.25, 0.125]), ("previous", [1, 1, 0.5, 0.5, 0.5, 0.25])],
)
def test_the_loss_is_compared_with_the_best_or_the_previous_one(compare_with, expected):
    optimizer = make_optimizer()
    cfg = ReduceLROnValidLossConfig(lr=[1.0], lr_shrink=0.5, lr_threshold=0)
    cfg.lr_compare_with = compare_with
    schedule, rates = ReduceLROnValidLossSchedule(cfg, optimizer), []
    metrics.reset()
    for update, loss in enumerate([5.0, 4.0, 4.5, 4.2, 3.0, 3.5], start=1):
        rates.append(schedule.step_update(update))
        with metrics.aggregate("valid"):
            # Two batches, of 7 tokens and of 1. Neither the last loss nor the mean of both losses
            # rises where the mean over the tokens, *loss*, does.
            metrics.log_scalar("loss", (11 * loss - 20) / 7, 7)
            metrics.log_scalar("loss", 20 - 3 * loss, 1)
    rates.append(schedule.step_update(7))
    metrics.reset()
    assert rates[1:] == expected


def test_a_run_that_resumes_after_an_epoch_knows_its_rate_before_the_next():
    """fairseq compares it with --stop-min-lr then, and would train one more epoch."""
    cfg = ReduceLROnValidLossConfig(lr=[1.0], lr_shrink=0.5, lr_threshold=0)
    optimizers = [make_optimizer(), make_optimizer()]
    whole, resumed = (ReduceLROnValidLossSchedule(cfg, each) for each in optimizers)
    metrics.reset()
    for epoch, loss in enumerate([4.0, 5.0], start=1):
        whole.step_begin_epoch(epoch)
        whole.step_update(epoch)
        with metrics.aggregate("valid"):
            metrics.log_scalar("loss", loss, 7)
        states = whole.state_dict(), optimizers[0].state_dict()  # the checkpoint
        rate = whole.step(epoch, loss)
    metrics.reset()
    resumed.load_state_dict(states[0])
    optimizers[1].load_state_dict(states[1])
    assert resumed.step_update(2) == 1.0
    assert [resumed.step(3), resumed.step(3)] == [rate, rate] == [0.5, 0.5]
    resumed.step_begin_epoch(3)
    assert resumed.step_update(3) == 0.5


@pytest.mark.parametrize(
    ("flag", "value"),
    [("lr_shrink", value) for value in (0, 1, 1.5, -0.5, math.nan)] + [("lr_patience", -1)],
)
def test_flags_out_of_range_are_refused_by_name(flag, value):
    cfg = ReduceLROnValidLossConfig(lr=[0.1], **{flag: value})
    with pytest.raises(ValueError, match="--" + flag.replace("_", "-")):
        ReduceLROnValidLossSchedule(cfg, None)

"""``--patience``: a resumed training stops where an uninterrupted one does."""

import random
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.dataclass.configs import CheckpointConfig
from fairseq_cli.train import should_stop_early

import toy
from commands import logged
from fairseq_sparse.tasks.patience import RemembersValidations

FLAGS = (
    *("--task", "translation_sparse", "--arch", "transformer_sparse_tiny", "--max-tokens", 100),
    *("--criterion", "entmax_loss", "--output-transform", "entmax15", "--seed", 2, "--lr", 0.3),
    *("--max-update", 60, "--patience", 4, "--log-format", "json", "--no-epoch-checkpoints"),
    *("--validate-interval-updates", 1, "--save-interval-updates", 1),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("patience")
    data = toy.binarised_text(folder, pairs=60)
    return data, *toy.train(folder / "checkpoints", data, *FLAGS)


def losses(log):
    """Return the loss of each validation, by the number of updates before it."""
    return {int(r["valid_num_updates"]): float(r["valid_loss"]) for r in logged(log, "valid")}


def test_a_resumed_run_stops_where_an_undisturbed_one_does(trained, tmp_path):
    data, last, log = trained
    whole = losses(log)
    end, best = max(whole), min(whole, key=whole.get)
    assert end == best + 4 < 60
    (checkpoint,) = last.parent.glob(f"checkpoint_*_{end - 2}.pt")
    shutil.copyfile(checkpoint, tmp_path / "checkpoint_last.pt")
    rest = losses(toy.train(tmp_path, data, *FLAGS)[1])
    assert rest == {update: whole[update] for update in (end - 1, end)}


class Stock:
    def train_step(self, *args):
        pass

    def begin_valid_epoch(self, *args):
        pass


class Task(RemembersValidations, Stock):
    pass


def validate(values, state=None, **settings):
    """Validate two subsets after each update, in a new process; return the number of validations
    and the optimizer's state that a checkpoint keeps."""
    vars(should_stop_early).clear()
    task, optimizer = Task(), torch.optim.SGD([torch.zeros(1)], lr=0.1)
    settings = CheckpointConfig(patience=3, **settings)
    task.checkpoint_settings = settings
    if state is not None:
        optimizer.load_state_dict(state)
    done = 0
    for value in values:
        done += 1
        task.train_step(None, None, None, optimizer)
        task.begin_valid_epoch(1, None)
        for stats in ({"loss": value, "bleu": -value}, {"loss": 9.0, "bleu": 9.0}):
            task.post_validate(None, stats, None)
        if should_stop_early(Namespace(checkpoint=settings), value):
            break
    vars(should_stop_early).clear()
    return done, optimizer.state_dict()


@pytest.mark.parametrize("maximize", [False, True])
def test_any_interruption_leaves_the_number_of_validations(maximize):
    flags = {"maximize_best_checkpoint_metric": maximize}
    for _ in range(50):
        values = [float(random.randrange(6)) for _ in range(12)]
        whole, _ = validate(values, **flags)
        for parts in range(1, whole):
            done, state = validate(values[:parts], **flags)
            assert done + validate(values[done:], state, **flags)[0] == whole


def test_an_earlier_part_counts_by_the_same_metric_and_unless_it_is_reset():
    earlier = validate([1.0, 2.0, 2.0])[1]
    assert validate([2.0] * 9, earlier)[0] == 1
    assert validate([2.0] * 9, earlier, reset_meters=True)[0] == 4
    assert validate([2.0] * 9, earlier, best_checkpoint_metric="bleu")[0] == 4


def test_a_metric_that_is_not_logged_is_named():
    with pytest.raises(
        ValueError, match="--best-checkpoint-metric chrf: .* choose from bleu, loss"
    ):
        validate([1.0], best_checkpoint_metric="chrf")

"""--label-smoothing-prior unigram: smoothing towards the frequencies of the training text."""

import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu

import commands
import toy
from fairseq_sparse.criterions.sparse_criterion import (
    AlphaReLULossCriterion,
    EntmaxLossCriterion,
    unigram_distribution,
)

TARGETS = ([5, 6, 6, 2], [6, 2], [7, 7, 6, 8, 2])


@pytest.fixture
def task():
    task = toy.task(data="bin", train_subset="train")
    task.datasets["train"] = [{"target": torch.tensor(tokens)} for tokens in TARGETS]
    task.dataset = task.datasets.__getitem__
    return task


def test_unigrams_are_counted_in_the_target_text(task):
    expected = torch.zeros(20)
    expected[[2, 5, 6, 7, 8]] = torch.tensor([3.0, 1, 4, 2, 1]) / 11
    torch.testing.assert_close(unigram_distribution(task), expected)


def test_unigrams_are_those_of_the_training_set_by_any_name(task):
    task.datasets["train1"] = task.datasets.pop("train")[:1]
    task.cfg.train_subset = "train1"
    expected = torch.zeros(20)
    expected[[2, 5, 6]] = torch.tensor([1.0, 1, 2]) / 4
    torch.testing.assert_close(unigram_distribution(task), expected)


def test_all_parts_of_the_training_set_are_counted(task):
    """fairseq-train has them all; a task that only validates loads them for this."""
    loaded = []

    def load_dataset(subset, combine=False):
        loaded.append((subset, combine))
        task.datasets[subset] = data

    data = task.datasets.pop("train")
    task.load_dataset = load_dataset
    unigram_distribution(task)
    assert loaded == [("train", True)]


def test_a_training_set_that_is_not_there_is_asked_for(task):
    def load_dataset(subset, combine=False):
        raise FileNotFoundError(f"Dataset not found: {subset}")

    del task.datasets["train"]
    task.load_dataset = load_dataset
    with pytest.raises(ValueError, match="--label-smoothing-prior"):
        unigram_distribution(task)


def test_unigrams_of_a_part_of_the_data_are_refused(task):
    task.cfg.data = "first:second"
    with pytest.raises(ValueError, match="first:second"):
        unigram_distribution(task)


@pytest.mark.parametrize("transform", ["softmax", "entmax15", "sparsemax", "alpha_relu"])
@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_smoothed_towards_them(transform, training, task):
    kind = AlphaReLULossCriterion if transform == "alpha_relu" else EntmaxLossCriterion
    flags = ("--output-transform", transform, "--output-tau", 0.5, "--dropout", 0)
    model = toy.model(*flags, for_task=task).train(training)
    sample = toy.batch(task.target_dictionary)
    logits, target = model(**sample["net_input"])[0], sample["target"]
    real = target != 1
    expected = model.decoder.output_projection.transform.loss(
        logits[real],
        target[real],
        label_smoothing=0.1,
        prior=unigram_distribution(task),
        reduction="sum",
    )
    losses = []
    for unfused in (False, True):
        criterion = kind(task, 0.1, unfused, False, "unigram")
        losses.append(criterion(model, sample)[0])
        torch.testing.assert_close(losses[-1], expected)
    gradients = [
        torch.autograd.grad(loss, model.parameters(), allow_unused=True) for loss in losses
    ]
    torch.testing.assert_close(*([g for g in of if g is not None] for of in gradients))


def test_it_needs_label_smoothing(task):
    with pytest.raises(ValueError, match="--label-smoothing"):
        EntmaxLossCriterion(task, 0.0, False, False, "unigram")


def test_it_trains_and_validates(data, tmp_path):
    flags = (*commands.output_flags("entmax15"), "--label-smoothing", 0.1, "--max-epoch", 2)
    losses = {}
    for prior in ("uniform", "unigram"):
        folder = tmp_path / prior
        result = commands.train(data, folder, *flags, "--label-smoothing-prior", prior)
        records = commands.logged(result.stdout + result.stderr, "valid")
        losses[prior] = [float(record["valid_loss"]) for record in records]
    assert losses["uniform"] != losses["unigram"] and losses["unigram"][1] < losses["unigram"][0]
    checkpoint = folder / "checkpoint_last.pt"
    assert load_checkpoint_to_cpu(str(checkpoint))["cfg"]["criterion"].label_smoothing_prior
    result = toy.run(
        "fairseq_cli.validate",
        *(data, "--user-dir", toy.USER_DIR, "--task", "translation_sparse", "--path", checkpoint),
        *("--max-tokens", 400, "--cpu", "--log-format", "json"),
    )
    (record,) = commands.logged(result.stdout + result.stderr, "valid")
    assert float(record["valid_loss"]) == pytest.approx(losses["unigram"][1], rel=1e-3)

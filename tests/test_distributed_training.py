"""Two workers train as one worker with twice as many batches per update."""

import functools
import re
import shutil

import pytest
import torch

import commands
from commands import logged, output_flags, train, train_on_two_workers

TAU = "decoder.output_projection.tau"
EPOCHS = 4
# Not Adam, which takes full steps even if gradients are only rounding errors, such as those of the
# keys' bias. No dropout: two workers draw other masks than one.
SAME_STEPS = (
    *("--share-all-embeddings", "--encoder-normalize-before", "--decoder-normalize-before"),
    *("--dropout", 0, "--optimizer", "sgd", "--momentum", 0.9, "--lr", 0.05, "--clip-norm", 0),
    *("--max-tokens", 200, "--max-epoch", EPOCHS),
)
# The sum of two workers' gradients has the same two terms as that of two batches, and division by 2
# is exact: here they are equal to the bit. This leaves room for kernels that add in another order:
# some units in the last place of float32, 2^-24, for each of 20 steps.
ROUNDING = {"atol": 1e-6, "rtol": 1e-5}
# fairseq logs four digits after the point.
LOGGED = 2e-4


def slow(transform):
    return pytest.param(transform, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def trained_by_two(data, tmp_path_factory):
    """Return a function: transform -> (folder with a checkpoint per epoch, what was printed)."""

    @functools.cache
    def run(transform):
        folder = tmp_path_factory.mktemp(transform)
        outputs = train_on_two_workers(data, folder, *SAME_STEPS, *output_flags(transform))
        return folder, "".join(outputs)

    return run


def parameters(folder, epoch=EPOCHS):
    return commands.parameters(folder / f"checkpoint{epoch}.pt")


def losses(output):
    return {
        tag: [float(record[f"{tag}_loss"]) for record in logged(output, tag)]
        for tag in ("train", "valid")
    }


def largest_difference(first, second):
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [*map(slow, ("softmax", "entmax15")), "alpha_relu"])
def test_two_workers_train_as_one_that_accumulates(transform, trained_by_two, data, tmp_path):
    folder, output = trained_by_two(transform)
    expected = parameters(folder)
    flags = output_flags(transform)
    if transform == "alpha_relu":
        # One worker would take tau from its first batch, half of what two workers see.
        flags += ("--output-tau", expected[TAU].item())
    alone = train(data, tmp_path, *SAME_STEPS, *flags, "--update-freq", 2).stdout

    updates = {logged(text, "train")[-1]["train_num_updates"] for text in (output, alone)}
    assert updates == {str(5 * EPOCHS)}
    for tag, values in losses(alone).items():
        assert values == pytest.approx(losses(output)[tag], abs=LOGGED)
        assert len(values) == EPOCHS and values[-1] < values[0]
    found = parameters(tmp_path)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], **ROUNDING, msg=name)
    assert largest_difference(parameters(folder, 1), expected) > 1e4 * ROUNDING["atol"]


def test_two_workers_find_the_tau_of_both_first_batches(data, tmp_path):
    """It equals that of one worker whose first batch has all sentences of both batches."""
    flags = (*output_flags("alpha_relu"), *SAME_STEPS, "--output-tau", "data")
    flags += ("--max-tokens", 10_000, "--max-update", 1)
    flags += ("--required-batch-size-multiple", 1, "--batch-size")
    found = re.compile(r"tau of alpha_relu: (\S+) .* (\d+) target tokens")
    two = found.findall("".join(train_on_two_workers(data, tmp_path / "two", *flags, 150)))
    one = found.findall(train(data, tmp_path / "one", *flags, 300).stdout)
    taus = [parameters(tmp_path / name, "_last")[TAU] for name in ("two", "one")]
    assert len(two) == len(one) == 1  # one worker logs it for both
    assert two[0][1] == one[0][1]
    torch.testing.assert_close(*taus)
    assert float(two[0][0]) == pytest.approx(taus[0].item(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 1])
def test_resuming_goes_on_exactly(workers, trained_by_two, data, tmp_path):
    """Two workers agree to the bit; one that accumulates in their place, up to rounding."""
    folder, _ = trained_by_two("alpha_relu")
    shutil.copy(folder / "checkpoint2.pt", tmp_path / "checkpoint_last.pt")
    flags = (*SAME_STEPS, *output_flags("alpha_relu"))
    if workers == 2:
        output = "".join(train_on_two_workers(data, tmp_path, *flags))
    else:
        output = train(data, tmp_path, *flags, "--update-freq", 2).stdout
    assert "tau of alpha_relu" in output and "from the checkpoint" in output
    assert [record["epoch"] for record in logged(output, "train")] == [3, 4]
    expected, found = parameters(folder), parameters(tmp_path)
    exactly = {"atol": 0, "rtol": 0}
    for name in expected:
        allowed = exactly if workers == 2 or name == TAU else ROUNDING
        torch.testing.assert_close(found[name], expected[name], **allowed, msg=name)

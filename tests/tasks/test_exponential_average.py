"""``--store-ema``: what is validated and averaged, and what a checkpoint keeps."""

import math

import pytest
import torch

import toy
from commands import logged
from fairseq_sparse.checkpoints.averaging import average_checkpoints

FLAGS = (
    *("--task", "translation_sparse", "--arch", "transformer_sparse_tiny", "--max-tokens", 300),
    *("--criterion", "alpha_relu_loss", "--output-transform", "alpha_relu", "--dropout", 0),
    *("--store-ema", "--ema-fp32", "--ema-decay", 0.5, "--ema-start-update", 3, "--seed", 3),
    *("--eval-bleu", "--eval-bleu-args", '{"beam": 2}', "--lr", 0.02, "--log-format", "json"),
    *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    *("--save-interval-updates", 1, "--validate-interval-updates", 1),
)


def numbers(path):
    return torch.load(path, map_location="cpu", weights_only=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ema")
    data = toy.binarised_text(folder, pairs=60)
    return data, *toy.train(folder / "checkpoints", data, *FLAGS, "--max-update", 6)


def test_it_is_the_mean_of_the_parameters_with_weights_that_fall(trained):
    _, last, _ = trained
    states, expected = map(numbers, last.parent.glob("*.pt")), None
    states = {state["optimizer_history"][-1]["num_updates"]: state for state in states}
    assert sorted(states) == [1, 2, 3, 4, 5, 6]
    for update in range(1, 7):
        model = states[update]["model"]["decoder.embed_tokens.weight"]
        expected = model if update < 3 else (expected + model) / 2
        average = states[update]["extra_state"]["ema_fp32_params"]["decoder.embed_tokens.weight"]
        torch.testing.assert_close(average, expected)
    averaged = average_checkpoints([last], exponential=True)["model"]
    assert torch.equal(averaged["decoder.embed_tokens.weight"], average)
    assert not torch.equal(averaged["decoder.embed_tokens.weight"], model)
    name = "decoder.output_projection.tau"
    assert torch.equal(averaged[name], numbers(last)["model"][name])


@pytest.mark.slow
def test_validation_is_that_of_the_average(trained, tmp_path):
    data, last, log = trained
    averaged = average_checkpoints([last], exponential=True)
    torch.save(averaged, tmp_path / "average.pt")

    def loss(path):
        flags = ("--user-dir", toy.USER_DIR, "--path", path, "--cpu", "--max-tokens", 300)
        flags += ("--task", "translation_sparse", "--log-format", "json", "--num-workers", 0)
        result = toy.run("fairseq_cli.validate", data, *flags)
        (record,) = logged(result.stdout + result.stderr, "valid")
        return float(record["valid_loss"])

    final = logged(log, "valid")[-1]
    assert int(final["valid_num_updates"]) == 6
    assert float(final["valid_loss"]) == loss(tmp_path / "average.pt") != loss(last)
    assert "valid_best_bleu" in final


@pytest.mark.slow
def test_a_resumed_training_goes_on_with_it(trained, tmp_path):
    data, last, _ = trained
    toy.train(tmp_path, data, *FLAGS, "--max-update", 4)
    path, _ = toy.train(tmp_path, data, *FLAGS, "--max-update", 6)
    for name in ("ema", "ema_fp32_params"):
        ours, theirs = (numbers(p)["extra_state"][name] for p in (path, last))
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            # fairseq 0.12.2 keeps an empty tensor that is never filled.
            assert key.endswith("_float_tensor") or torch.equal(ours[key], value), key


def test_a_tau_that_is_found_after_the_average_was_made_is_the_averages_too(trained, tmp_path):
    """fairseq makes the average as soon as a checkpoint is loaded, when tau is still NaN."""
    data, _, _ = trained
    flags = [str(flag) for flag in FLAGS]
    softmax = "softmax entmax_loss".split()
    place = flags.index("alpha_relu_loss"), flags.index("alpha_relu")
    flags[place[0]], flags[place[1]] = softmax[1], softmax[0]
    first, _ = toy.train(tmp_path / "softmax", data, *flags, "--max-update", 1)
    given = ("--finetune-from-model", first, "--output-tau", "data")
    last, log = toy.train(tmp_path / "alpha_relu", data, *FLAGS, *given, "--max-update", 2)
    losses = [float(record["valid_loss"]) for record in logged(log, "valid")]
    assert len(losses) == 2 and all(map(math.isfinite, losses))

"""Averaging checkpoints."""

import os
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

import toy
from bad_input import assert_refused
from checkpoints import TAU, make_state, write
from fairseq_sparse.checkpoints.averaging import (
    average_checkpoints,
    for_sharing,
    last_checkpoints,
    save_checkpoint,
)
from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.commands import cli
from fairseq_sparse.errors import CheckpointError

# Hypothesis runs a test many times in one tmp_path; every run writes its own files anew.
files_are_rewritten = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
parameters = hypothesis_numpy.arrays(
    np.float32,
    (2, 3),
    elements=st.floats(-1e4, 1e4, width=32, allow_nan=False, allow_infinity=False),
)


def run_command(*arguments):
    return toy.command("average", *arguments, check=False)


def test_checkpoints_from_before_the_attention_flags_have_softmax_attention(tmp_path):
    new = {"attention": "softmax", "attention_enc": None, "attention_alpha": 1.5}
    other = {**new, "attention_cross": "rela_g"}
    paths = write(tmp_path, [make_state(**fields) for fields in ({}, new, other)])
    average_checkpoints(paths[:2])
    with pytest.raises(CheckpointError, match="--attention-cross rela_g, but"):
        average_checkpoints(paths)


# The average of the parameters.


@files_are_rewritten
@given(weights=st.lists(parameters, min_size=1, max_size=4))
def test_average_is_the_mean(tmp_path, weights):
    average = average_checkpoints(write(tmp_path, map(make_state, weights)))["model"]
    expected = np.mean(np.stack(weights).astype(np.float64), axis=0)
    np.testing.assert_array_equal(
        average["decoder.embed_tokens.weight"].numpy(), expected.astype(np.float32)
    )
    halves = [np.clip(weight, -1e3, 1e3).astype(np.float16) for weight in weights]
    half_mean = np.mean(np.stack(halves).astype(np.float64), axis=0)
    half_mean = half_mean.astype(np.float32).astype(np.float16)  # torch rounds on the way
    np.testing.assert_array_equal(average["decoder.half"].numpy(), half_mean)
    assert average["decoder.half"].dtype == torch.float16


@files_are_rewritten
@given(weight=parameters, count=st.integers(1, 7), tau=st.floats(-5, 5, width=32))
def test_average_of_equal_checkpoints_is_the_checkpoint(tmp_path, weight, count, tau):
    state = make_state(weight, tau=tau)
    average = average_checkpoints(write(tmp_path, [state]) * count)["model"]
    assert average.keys() == state["model"].keys()
    for key, value in state["model"].items():
        assert average[key].dtype == value.dtype
        assert average[key].shape == value.shape
        assert torch.equal(average[key], value), key


@files_are_rewritten
@given(weights=st.lists(parameters, min_size=2, max_size=4), data=st.data())
def test_average_does_not_depend_on_the_order(tmp_path, weights, data):
    paths = write(tmp_path, map(make_state, weights))
    shuffled = data.draw(st.permutations(paths))
    first = average_checkpoints(paths)["model"]
    second = average_checkpoints(shuffled)["model"]
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-6, atol=1e-9)


def test_half_precision_is_summed_in_more(tmp_path):
    """In float16 the sum would overflow to inf, and in bfloat16 lose its small parts."""
    states = [make_state() for _ in range(3)]
    for state, addend in zip(states, (0, 1, 2), strict=True):
        state["model"] = {
            "big": torch.full((4,), 60000.0, dtype=torch.float16),
            "fine": torch.full((4,), 256.0 + 2 * addend, dtype=torch.bfloat16),
        }
    average = average_checkpoints(write(tmp_path, states))["model"]
    assert torch.equal(average["big"], states[0]["model"]["big"])
    assert torch.equal(average["fine"], torch.full((4,), 258.0, dtype=torch.bfloat16))


# The other contents of the result.


@pytest.mark.parametrize("layer", ["output_projection", "fc_out"])  # a Transformer's, an LSTM's
def test_tau_and_integers_are_kept_exactly(layer, tmp_path):
    tau = 1.3  # not exact in float32, so that a mean of three could differ by rounding
    states = [make_state(number, tau=tau) for number in range(3)]
    own = f"decoder.{layer}.tau"
    for state in states:
        state["model"][own] = state["model"].pop(TAU)
    average = average_checkpoints(write(tmp_path, states))["model"]
    assert torch.equal(average[own], torch.tensor(tau))
    assert torch.equal(average["decoder.steps"], torch.tensor([7]))
    assert torch.equal(average["decoder.mask"], torch.tensor([True, False]))


def test_the_rest_comes_from_the_last_without_the_optimizer(tmp_path):
    states = [make_state(number) for number in range(2)]
    states[1]["extra_state"]["val_loss"] = np.float64(1.25)
    average = average_checkpoints(write(tmp_path, states))
    assert average.keys() == states[0].keys() - {"last_optimizer_state"}
    assert average["cfg"] == states[1]["cfg"]
    assert average["optimizer_history"] == [{"num_updates": 3}]
    assert average["extra_state"]["val_loss"] == 1.25


def test_tied_parameters_are_saved_once(tmp_path):
    paths = write(tmp_path, [make_state(number) for number in range(3)])
    save_checkpoint(average_checkpoints(paths), tmp_path / "average.pt")
    model = load_checkpoint(tmp_path / "average.pt")["model"]
    pointers = {value.data_ptr() for key, value in model.items() if "weight" in key}
    assert len(pointers) == 1


def test_a_checkpoint_to_give_away_is_half_as_large_and_knows_no_paths(tmp_path):
    tau = 1 + 2**-20
    state = make_state(1 / 3, tau, data="/secret/bin", user_dir="/secret/user")
    (path,) = write(tmp_path, [state])
    done = run_command("--inputs", path, "--output", tmp_path / "shared.pt", "--share")
    assert done.returncode == 0, done.stderr
    state = load_checkpoint(tmp_path / "shared.pt")
    assert state["cfg"]["task"]["data"] == "." and "/secret" not in str(state["cfg"])
    model = state["model"]
    third = torch.full((2, 3), 1 / 3, dtype=torch.float16)
    weights = [value for key, value in model.items() if "weight" in key]
    assert all(torch.equal(weight, third) for weight in weights)
    assert len({weight.data_ptr() for weight in weights}) == 1 and model[TAU] == tau


def test_untied_parameters_stay_apart(tmp_path):
    """Tied in the last checkpoint only: the averages differ, and must not be shared."""
    states = [make_state(1.0), make_state(3.0)]
    states[0]["model"]["decoder.output_projection.weight"] = torch.full((2, 3), 5.0)
    average = average_checkpoints(write(tmp_path, states))["model"]
    assert torch.equal(average["decoder.embed_tokens.weight"], torch.full((2, 3), 2.0))
    assert torch.equal(average["decoder.output_projection.weight"], torch.full((2, 3), 4.0))


def test_inputs_are_not_changed(tmp_path):
    paths = write(tmp_path, [make_state(number) for number in range(2)])
    before = [Path(path).read_bytes() for path in paths]
    average_checkpoints(paths)
    assert [Path(path).read_bytes() for path in paths] == before


# The exponential average, and refusals.


def with_exponential_average(name, *values):
    """Checkpoints whose exponential averages are filled with these values."""
    states = []
    for value in values:
        state = make_state(0.0)
        average = {key: torch.full_like(x, value) for key, x in state["model"].items()}
        state["extra_state"]["ema"] = {
            key: -x for key, x in average.items() if x.dtype.is_floating_point
        }
        state["extra_state"][name] = average
        states.append(state)
    return states


@pytest.mark.parametrize("name", ["ema", "ema_fp32_params"])
def test_the_exponential_average_takes_the_place_of_the_parameters(name, tmp_path):
    paths = write(tmp_path, with_exponential_average(name, 2.0, 3.0))
    state = average_checkpoints(paths, exponential=True)
    expected = make_state(2.5)["model"]
    assert state["model"].keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(state["model"][key], value), key  # tau and integers are the model's
    assert not {"ema", "ema_fp32_params"} & {*state["extra_state"]}
    plain = average_checkpoints(paths)
    assert torch.equal(plain["model"]["encoder.embed_tokens.weight"], torch.zeros(2, 3))
    assert not {"ema", "ema_fp32_params"} & {*plain["extra_state"]}


def test_exponential_averages_are_rounded_once(tmp_path):
    """The fp32 averages of an fp16 model are not rounded before their mean is taken."""
    states = with_exponential_average("ema_fp32_params", 1.0, 1.0)
    key = "encoder.embed_tokens.weight"
    for state, value in zip(states, (1.0004, 1.0008), strict=True):
        state["model"][key] = state["model"][key].half()
        state["extra_state"]["ema_fp32_params"][key].fill_(value)
    found = average_checkpoints(write(tmp_path, states), exponential=True)["model"][key]
    assert found.dtype == torch.float16 and (found == 1 + 2**-10).all()


def test_a_checkpoint_without_its_exponential_average_is_refused(tmp_path, capsys):
    (without,) = write(tmp_path, [make_state()])
    output = tmp_path / "average.pt"
    assert cli.run("average", ["--inputs", without, "--output", str(output), "--ema"]) == 1
    assert "was not trained with --store-ema" in capsys.readouterr().err
    (state,) = with_exponential_average("ema_fp32_params", 1.0)
    del state["extra_state"]["ema_fp32_params"]["decoder.half"]
    paths = write(tmp_path, [state])
    with pytest.raises(CheckpointError, match="decoder.half is missing"):
        average_checkpoints(paths, exponential=True)
    assert not output.exists()


def change_entry(key, value):
    def change(state):
        state["model"][key] = value

    return change


def drop_entry(key):
    return lambda state: state["model"].pop(key)


def change_field(field, value):
    return lambda state: setattr(state["cfg"]["model"], field, value)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("decoder.half", drop_entry("decoder.half")),
        ("decoder.new", change_entry("decoder.new", torch.zeros(1))),
        ("(4, 3)", change_entry("encoder.embed_tokens.weight", torch.zeros(4, 3))),
        ("torch.float16", change_entry("decoder.half", torch.zeros(2, 3))),
        ("decoder.steps is 8", change_entry("decoder.steps", torch.tensor([8]))),
        (f"{TAU} is 0.5", change_entry(TAU, torch.tensor(0.5))),
        ("transformer_sparse", change_field("arch", "transformer")),
        ("--output-transform entmax15", change_field("output_transform", "entmax15")),
        ("--output-alpha 1.25", change_field("output_alpha", 1.25)),
        ("decoder_attention_heads is 8", change_field("decoder_attention_heads", 8)),
    ],
)
def test_refusal_names_the_difference_and_both_files(tmp_path, named, change):
    states = [make_state(), make_state()]
    change(states[1])
    paths = write(tmp_path, states)
    with pytest.raises(CheckpointError) as refusal:
        average_checkpoints(paths)
    for text in [named, *paths]:
        assert text in str(refusal.value)


def test_configurations_as_dictionaries_are_compared(tmp_path):
    """Models with a dataclass for their configuration save a dictionary, older ones `args`."""
    states = [make_state(), make_state()]
    fields = {"output_transform": "entmax", "output_alpha": 1.5}
    states[0]["cfg"]["model"] = {"_name": "transformer_lm", **fields}
    old = Namespace(arch="transformer_lm", **{**fields, "output_alpha": 2.0})
    states[1]["cfg"], states[1]["args"] = None, old
    with pytest.raises(CheckpointError, match=r"--output-alpha 2\.0, but .* --output-alpha 1\.5"):
        average_checkpoints(write(tmp_path, states))


@pytest.mark.parametrize(
    "content", [[1, 2], {"weight": torch.zeros(1)}, {"model": {}}, {"model": {"weight": 1.0}}]
)
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "checkpoint1.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=str(path)):
        average_checkpoints([path])


# Selecting the last checkpoints.


def test_last_checkpoints_are_the_last_by_number(tmp_path):
    for name in ("1", "2", "9", "10", "_1_5", "_1_90", "_2_100", "_best", "_last", ".best_bleu_3"):
        (tmp_path / f"checkpoint{name}.pt").touch()

    def names(count, by):
        return [Path(path).name for path in last_checkpoints(tmp_path, count, by)]

    assert names(2, "epoch") == ["checkpoint9.pt", "checkpoint10.pt"]
    assert names(2, "update") == ["checkpoint_1_90.pt", "checkpoint_2_100.pt"]
    with pytest.raises(CheckpointError, match=r"5 checkpoints by epoch .* 4 found \(.*10\.pt\)"):
        names(5, "epoch")
    with pytest.raises(CheckpointError, match="no such folder"):
        last_checkpoints(tmp_path / "nowhere", 1, "epoch")


# Writing, and the command line.


def test_failed_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "average.pt"

    def fail_after_a_part(state, file):
        file.write(b"a part")
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail_after_a_part)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(make_state(), path)
        assert list(tmp_path.iterdir()) == []
        path.write_bytes(b"old")
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(make_state(), path)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]
    save_checkpoint(make_state(), path)
    assert load_checkpoint(path).keys() == make_state().keys()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["device", "pipe", "folder", "link to a folder"])
def test_only_a_file_is_replaced(place, tmp_path, monkeypatch, capsys):
    """Other outputs are refused before the inputs, which are missing here, are read."""
    output, inside = tmp_path / "average.pt", tmp_path / "folder"
    inside.mkdir()
    if place == "pipe":
        os.mkfifo(output)
    elif place == "folder":
        output.mkdir()
    else:
        output.symlink_to(os.devnull if place == "device" else inside)

    def state():
        found = output.lstat()
        return found.st_ino, found.st_mode, found.st_mtime_ns  # following a link changes its atime

    before = state()
    with pytest.raises(CheckpointError, match=str(output)):
        save_checkpoint(make_state(), output)
    missing = str(tmp_path / "missing.pt")
    assert cli.run("average", ["--inputs", missing, "--output", str(output)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(output) in line
    monkeypatch.chdir(inside)
    assert cli.run("average", ["--inputs", missing, "--output", ""]) == 1
    assert state() == before
    assert {path.name for path in tmp_path.iterdir()} == {"average.pt", "folder"}


def test_command_line_averages_the_last_epochs(tmp_path):
    folder = tmp_path / "a folder, größer"
    folder.mkdir()
    write(folder, [make_state(number) for number in (1, 2, 4)])
    output = tmp_path / "new folder" / "average.pt"
    arguments = ("--inputs", folder, "--num-epoch-checkpoints", 2, "--output", output)
    result = run_command(*arguments)
    assert result.returncode == 0, result.stderr
    assert "[2/2]" in result.stdout
    weight = load_checkpoint(output)["model"]["decoder.embed_tokens.weight"]
    assert torch.equal(weight, torch.full((2, 3), 3.0))


def test_command_line_fails_loudly_and_keeps_what_is_there(tmp_path):
    first, second = write(tmp_path, [make_state(), make_state(tau=0.5)])
    output = tmp_path / "average.pt"
    output.write_bytes(b"old")
    result = run_command("--inputs", first, second, "--output", output)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("fairseq-sparse average: error:")
    assert "0.5" in result.stderr and "0.75" in result.stderr
    assert "Traceback" not in result.stderr
    assert output.read_bytes() == b"old"

    before = Path(first).read_bytes()
    result = run_command("--inputs", first, "--output", first)
    assert result.returncode == 1
    assert first in result.stderr
    assert Path(first).read_bytes() == before
    assert {*map(str, tmp_path.iterdir())} == {first, second, str(output)}


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("--inputs", "--inputs a b --num-epoch-checkpoints 2 --output c"),
        ("--inputs", "--inputs a b a --output c"),
        ("--num-epoch-checkpoints", "--inputs a --num-epoch-checkpoints 0 --output c"),
    ],
)
def test_command_line_refuses_what_makes_no_sense(named, arguments, capsys):
    assert_refused(capsys, named, cli.run, "average", arguments.split())


# --- checkpoints to give away --------------------------------------------------------------------


def test_a_shared_checkpoint_has_half_the_size_and_no_path_of_this_machine():
    names = ("data", "save_dir", "user_dir", "encoder_embed_path", "decoder_embed_path")
    names += ("continue_once", "search_report", "distributed_init_method", "lm_path")
    state = make_state(1.5, tau=1.3754321, **{name: f"/mine/{name}" for name in names})
    shared = for_sharing(state)
    assert "/mine" not in str(shared["cfg"]) and "/mine" in str(state["cfg"])
    assert shared["model"][TAU].equal(state["model"][TAU])
    embedding = shared["model"]["encoder.embed_tokens.weight"]
    assert embedding.dtype == torch.half and (embedding == 1.5).all()
    assert embedding is shared["model"]["decoder.output_projection.weight"]  # saved once

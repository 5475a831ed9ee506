"""Checkpoints are loaded without running code from the file; other files are refused."""

import ast
import io
import os
import pickle
import struct
import subprocess
import zipfile
import zlib
from argparse import Namespace
from pathlib import Path

import fairseq
import numpy as np
import omegaconf
import pytest
import torch

import toy
from checkpoints import make_state, write
from fairseq_sparse.checkpoints import reading
from fairseq_sparse.checkpoints.averaging import average_checkpoints
from fairseq_sparse.checkpoints.loading import (
    EVALUATED_SETTINGS,
    allow_fairseq_checkpoints,
    check_settings,
    load_checkpoint,
)
from fairseq_sparse.commands import cli
from fairseq_sparse.errors import CheckpointError
from fork_python import PYTHON


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_truncated_files_are_refused(tmp_path, part):
    (path,) = write(tmp_path, [make_state()])
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * part)])
    with pytest.raises(CheckpointError, match="truncated"):
        average_checkpoints([path])


def test_what_fairseq_saves_loads_the_same(tmp_path):
    (path,) = write(tmp_path, [make_state(1.5)])
    allow_fairseq_checkpoints()
    allow_fairseq_checkpoints()
    for state in (load_checkpoint(path), torch.load(path, weights_only=True)):
        assert state["cfg"]["model"] == make_state()["cfg"]["model"]
        assert state["extra_state"]["val_loss"] == 2.5
        np.testing.assert_array_equal(state["extra_state"]["counts"], [4, 5])
        assert torch.equal(state["model"]["decoder.half"], torch.full((2, 3), 1.5).half())


def test_a_checkpoint_without_its_tensors_has_everything_else(tmp_path):
    (path,) = write(tmp_path, [make_state()])
    whole, without = load_checkpoint(path), load_checkpoint(path, with_tensors=False)
    assert without["cfg"] == whole["cfg"] and without["model"].keys() == whole["model"].keys()
    for key, value in whole["model"].items():
        assert without["model"][key].shape == value.shape and without["model"][key].is_meta


# --- files that change while they are read, or later ---------------------------------------------


CHANGED = """
import sys
from fairseq_sparse.checkpoints.loading import load_checkpoint
state = load_checkpoint(sys.argv[1])
open(sys.argv[1], "wb").close()
print(state["model"]["encoder.embed_tokens.weight"].sum().item())
"""


def test_a_loaded_checkpoint_does_not_change_with_its_file(tmp_path):
    """In a process of its own: one that reads a mapped file beyond its end is killed."""
    (path,) = write(tmp_path, [make_state(torch.full((2, 3), 1.5))])
    command = [PYTHON, "-c", CHANGED, path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (0, "9.0\n")


def test_two_files_are_never_mixed(tmp_path, monkeypatch):
    """The file is rewritten in place, with other parameters, after its settings were read."""
    states = [make_state(1.0), make_state(2.0)]
    for state in states:  # larger than Python's buffer
        state["model"]["large"] = state["model"]["decoder.half"].float().repeat(1000, 10)
    old, new = write(tmp_path, states)
    read = reading._Reader.persistent_load

    def rewrite_and_read(self, description):
        Path(old).write_bytes(Path(new).read_bytes())
        return read(self, description)

    monkeypatch.setattr(reading._Reader, "persistent_load", rewrite_and_read)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(old)


# --- files of another kind -----------------------------------------------------------------------


def rewrite(path, change, compression=zipfile.ZIP_STORED):
    """Rewrite the archive, passing each member through ``change``; None drops the member."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            content = change(name.partition("/")[2], content)
            if content is not None:
                archive.writestr(name, content)


def without(member):
    return lambda path: rewrite(path, lambda name, data: None if name == member else data)


def in_pickle(old, new):
    def change(name, data):
        assert name != "data.pkl" or old in data
        return data.replace(old, new, 1) if name == "data.pkl" else data

    return lambda path: rewrite(path, change)


def script(path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(path)


def folder(path):
    os.remove(path)
    os.mkdir(path)


def content(data):
    return lambda path: Path(path).write_bytes(data)


def foreign_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")


def on_several_disks(path):
    """Flip a bit in what says where the directory of the archive is."""
    stored = bytearray(Path(path).read_bytes())
    stored[stored.rindex(b"PK\x06\x07") + 4] ^= 1
    Path(path).write_bytes(stored)


SAFETENSORS = (
    b"\x40" + bytes(7) + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(72)
)
TORCH_1_5 = io.BytesIO()
torch.save(make_state(), TORCH_1_5, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    {
        "folder": (folder, "is a folder"),
        "empty": (content(b""), "truncated, or not a checkpoint"),
        "text": (content(b"ein Haus\n" * 99), "truncated, or not a checkpoint"),
        "safetensors": (content(SAFETENSORS), "truncated, or not a checkpoint"),
        "pickle": (content(pickle.dumps({"model": {}})), "truncated, or not a checkpoint"),
        "torch 1.5": (content(TORCH_1_5.getvalue()), "PyTorch 1.6 or later"),
        "zip": (foreign_zip, "archive of another kind"),
        "TorchScript": (script, "archive of another kind"),
        "compressed": (lambda path: rewrite(path, lambda _, data: data, 8), "compressed"),
        "another byte order": (
            lambda path: rewrite(path, lambda name, data: b"big" if name == "byteorder" else data),
            "byte order",
        ),
        "on several disks": (on_several_disks, "cannot be read"),
        "no pickle": (without("data.pkl"), "archive of another kind"),
        "no parameters": (without("data/0"), "cannot be read"),
        "a tensor larger than its storage": (in_pickle(b"K\x02K\x03", b"M\0\x40K\x03"), "cannot"),
        "a broken pickle": (in_pickle(b"}", b"\xff"), "refused|cannot be read"),
    }.values(),
    ids=lambda value: None if callable(value) else str(value),
)
def test_another_kind_of_file_is_refused_by_name(tmp_path, damage, message):
    (path,) = write(tmp_path, [make_state()])
    damage(path)
    with pytest.raises(CheckpointError, match=message) as refusal:
        load_checkpoint(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_member_that_claims_more_bytes_than_it_has_is_refused(tmp_path):
    """The rest would be whatever the process had in its memory."""
    (path,) = write(tmp_path, [{"model": {"zeros": torch.zeros(99_999)}}])
    assert load_checkpoint(path)
    with zipfile.ZipFile(path) as archive:
        info = max(archive.infolist(), key=lambda info: info.file_size)
        stored = bytearray(Path(path).read_bytes())
        directory = stored.index(info.filename.encode(), archive.start_dir) - 46
    info.CRC = zlib.crc32(bytes(99))
    struct.pack_into("<LL", stored, directory + 16, info.CRC, 99)  # the size that is stored
    Path(path).write_bytes(stored)
    with pytest.raises(CheckpointError, match="cannot be read|truncated"):
        load_checkpoint(path)


def test_a_storage_that_claims_to_be_huge_takes_no_memory(tmp_path):
    (path,) = write(tmp_path, [make_state(2.0)])
    in_pickle(b"K\x06t", b"\x8a\x06\0\0\0\0\0\x10t")(path)  # 2^44 numbers, not 6
    try:
        weight = load_checkpoint(path)["model"]["encoder.embed_tokens.weight"]
    except CheckpointError:
        return
    assert torch.equal(weight, torch.full((2, 3), 2.0))


@pytest.mark.parametrize(
    "value", [5, "text", [1], [None], {"a": 5}, {1: 5}, torch.zeros(2), torch.zeros(0)], ids=str
)
def test_fields_of_the_wrong_type_end_in_one_line(tmp_path, value):
    good = make_state(output_transform="softmax")
    good["cfg"] |= {"common": {}, "criterion": {"_name": "cross_entropy"}, "checkpoint": {}}
    places = [(good, name) for name in ("model", "cfg", "args", "extra_state", "optimizer_history")]
    places += [
        (good["cfg"], name) for name in ("model", "task", "common", "criterion", "checkpoint")
    ]
    places += [(vars(good["cfg"]["model"]), "attention_bias"), (good["cfg"]["task"], "_name")]
    for part, name in places:
        before, part[name] = part.get(name), value
        (path,) = write(tmp_path, [good])
        part[name] = before
        output = str(tmp_path / "out.pt")
        assert cli.run("average", ["--inputs", path, "--output", output]) in (0, 1), name
        assert cli.run("average", ["--ema", "--inputs", path, "--output", output]) in (0, 1), name
        assert cli.run("export", [path, output]) in (0, 1), name


# --- code in the pickle --------------------------------------------------------------------------


class Call:
    """An object that makes an unrestricted unpickler call a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def direct(target):
    return Call(os.mkdir, target)


def in_a_pickle(target):
    return Call(pickle.loads, pickle.dumps(direct(target)))


def in_a_storage(target):
    buffer = io.BytesIO()
    torch.save(direct(target), buffer)
    return Call(torch.storage._load_from_bytes, buffer.getvalue())


def by_attribute(_):
    """Only look the function up: pickle cannot save a call of another call's result."""
    return Call(getattr, Call(__import__, "os"), "mkdir")


@pytest.mark.parametrize("place", ["model", "extra_state", "last_optimizer_state"])
@pytest.mark.parametrize("attack", [direct, in_a_pickle, in_a_storage, by_attribute])
def test_a_file_that_would_run_code_is_refused(tmp_path, attack, place):
    target = tmp_path / "attacked"
    state = make_state()
    state[place]["attack"] = attack(str(target))
    (path,) = write(tmp_path, [state])
    with pytest.raises(CheckpointError, match="refused") as refusal:
        load_checkpoint(path)
    assert path in str(refusal.value) and not target.exists()
    if attack is direct:
        assert "mkdir" in str(refusal.value)
        torch.load(path, weights_only=False)  # the attack itself works
        assert target.exists()


def test_code_in_the_format_of_torch_1_5_is_refused(tmp_path):
    path, target = tmp_path / "old.pt", tmp_path / "attacked"
    torch.save(direct(str(target)), path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="PyTorch 1.6 or later"):
        load_checkpoint(path)
    assert not target.exists()


# --- code in the settings, which fairseq evaluates -----------------------------------------------

CODE = [
    "__import__('os').mkdir({!r})",
    " [x for x in [__import__('os').mkdir({!r})]]",
    "(lambda: __import__('os').mkdir({!r}))()",
    "${{common.user_dir}}",
]


@pytest.mark.parametrize("code", CODE, ids=range(len(CODE)))
@pytest.mark.parametrize("kind", [Namespace, dict, "nested", "old"])
def test_code_in_the_settings_is_refused(tmp_path, code, kind):
    code = code.format(str(tmp_path / "attacked"))
    state = make_state()
    if kind == "nested":
        state["cfg"]["model"] = {"decoder": {"xformers_att_config": code}}
    elif kind == "old":
        state["cfg"], state["args"] = None, Namespace(arch="lstm", decoder_attention=code)
    else:
        state["cfg"]["model"] = kind(arch="fconv", decoder_layers=code)
    (path,) = write(tmp_path, [state])
    with pytest.raises(CheckpointError, match="--(decoder|xformers).*code that fairseq would run"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "value",
    [
        b"__import__('os').system('false')",
        bytearray(b"print()"),
        np.frombuffer(b"print()", dtype=np.uint8),
        ["1", b"print()"],
        "'${.decoder_layers_to_keep}'",  # between quotes, too
    ],
)
def test_code_that_is_no_plain_text_is_refused(value):
    with pytest.raises(ValueError, match="--encoder-layers is .*: code that fairseq would run"):
        check_settings({"encoder_layers": value})


def test_settings_without_an_end_are_refused():
    endless, doubled = {}, []
    endless["model"] = endless
    for _ in range(40):
        doubled = [doubled, doubled]
    for settings in (endless, {"encoder_layers": doubled}):
        with pytest.raises(ValueError):
            check_settings(settings)


@pytest.mark.parametrize("value", ["1", "True", "None", "[(512, 3)] * 20", "0.9, -0.98", 6, None])
def test_values_that_fairseq_evaluates_may_stay(value):
    check_settings(Namespace(encoder_layers=value, save_dir="runs/copy(1)"))
    check_settings(omegaconf.OmegaConf.create({"a": {"adam_betas": value, "data": "???"}}))


@pytest.mark.parametrize("arch", ["lstm_sparse", "transformer_sparse_tiny"])
def test_a_model_does_not_run_its_settings(tmp_path, arch):
    code = CODE[0].format(str(tmp_path / "attacked"))
    names = ("decoder_attention", "adaptive_softmax_cutoff", "encoder_xformers_att_config")
    for name in names:
        with pytest.raises(ValueError, match="code that fairseq would run"):
            toy.model(arch=arch, criterion="cross_entropy", **{name: code})
    assert not list(tmp_path.iterdir())


def evaluated_by_fairseq():
    """Yield the names of the settings that fairseq passes to eval anywhere in its code."""
    package = Path(fairseq.__file__).parent
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in ("benchmark", "examples", "data"):
            continue
        source = path.read_text("utf-8")
        if "eval_" not in source and "eval(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            function = getattr(node.func, "id", getattr(node.func, "attr", ""))
            of_fairseq = function in ("eval_bool", "eval_str_list", "eval_str_dict")
            if of_fairseq or getattr(node.func, "id", "") == "eval":
                yield getattr(node.args[0], "attr", None)


def test_every_setting_that_fairseq_evaluates_is_looked_at():
    names = set(evaluated_by_fairseq()) - {None}
    assert {"decoder_attention", "adaptive_softmax_cutoff", "adam_betas"} <= names
    assert names <= EVALUATED_SETTINGS

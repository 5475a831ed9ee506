"""Loading fairseq checkpoints without running code that may be hidden in them.

A checkpoint is a pickle, and a pickle can name any function to call. The commands of this package
read checkpoints with ``reading.py``, which builds only what a fairseq checkpoint needs. fairseq's
own commands call ``torch.load``, which has a list of allowed names for the whole process. A fairseq
checkpoint needs a little more than is on it: the arguments of the run are an
``argparse.Namespace``, and validation with ``--eval-bleu`` leaves NumPy arrays in the saved
metrics. Workers also send checkpoints to each other as pickles, in which the arguments are
omegaconf objects.

fairseq evaluates some of these arguments as Python when it builds a model: they are checked too.
"""

import argparse
import ast
import collections
import numbers
import os
import pickle
import reprlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import omegaconf
import torch

from fairseq_sparse.checkpoints import numpy_pickles
from fairseq_sparse.checkpoints.reading import read_archive
from fairseq_sparse.errors import CheckpointError

# Types in the configuration of a run that fairseq's first worker sends to the others. A file can
# name them, too, where fairseq calls torch.load. It gains nothing: they are written in Python or
# take any argument, and torch's own list has set, OrderedDict and complex beside them.
_SENT_CLASSES = (
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.AnyNode,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    collections.defaultdict,
    dict,
    list,
    int,
    Any,
)

# Settings that fairseq passes to Python's eval when it builds a model, a task, a criterion or an
# optimizer from a checkpoint. They may contain only values and names, see _VALUES.
EVALUATED_SETTINGS = frozenset(
    """
    adafactor_eps adam_betas adamax_betas adaptive_input_cutoff adaptive_softmax_cutoff
    character_filters conv_aggregator_layers conv_feature_layers decoder_attention decoder_layers
    downsample encoder_attention encoder_layers gated_attention lamb_betas left_pad_source
    left_pad_target pipeline_balance pipeline_decoder_balance pipeline_decoder_devices
    pipeline_devices pipeline_encoder_balance pipeline_encoder_devices pretrained project_input
    self_attention wer_args xformers_att_config encoder_xformers_att_config
    decoder_xformers_att_config
    """.split()
)
_MOST_SETTINGS = 100_000  # a run of fairseq has fewer than a thousand

# Parts of the settings that this package reads.
_PARTS = ("task", "model", "criterion", "checkpoint", "common")
_VALUES = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Name, ast.Attribute)
_VALUES += (ast.UnaryOp, ast.UAdd, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Load)


def allow_fairseq_checkpoints() -> None:
    """Let ``torch.load(..., weights_only=True)`` read what fairseq writes, and its workers send.

    torch loads with ``weights_only=True`` unless told otherwise, and fairseq does not tell it
    otherwise. This adds the few harmless types of a fairseq checkpoint to those that torch
    accepts; everything else is still refused. Calling it again changes nothing.
    """
    from fairseq.distributed.utils import _TensorPlaceholder  # for a tensor sent separately

    numpy_names = [(value, name) for name, value in numpy_pickles.ALLOWED.items()]
    classes = [argparse.Namespace, *_SENT_CLASSES, _TensorPlaceholder]
    torch.serialization.add_safe_globals([*classes, *numpy_names])


def check_settings(settings: Any) -> None:
    """Refuse settings that would run code where fairseq evaluates them.

    Args:
        settings: those of a model or of a whole run: a mapping or namespace, nested or not.

    Raises:
        ValueError: a setting contains code, or is an array; the message names the flag.
    """
    for name, value in _settings(settings):
        flag = "--" + str(name).replace("_", "-")
        if name in EVALUATED_SETTINGS and not _is_value(value):
            shown = reprlib.repr(value)
            raise ValueError(f"{flag} is {shown}: code that fairseq would run, not a value")
        if isinstance(value, (torch.Tensor, np.ndarray)):
            raise ValueError(f"{flag} is an array, not a setting")


def _settings(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each setting, at any depth.

    Raises:
        ValueError: there is no end of them, because a dictionary contains itself.
    """
    pending = [settings]
    for _ in range(_MOST_SETTINGS):
        if not pending:
            return
        part = pending.pop()
        if isinstance(part, argparse.Namespace):
            part = vars(part)
        elif isinstance(part, omegaconf.DictConfig):
            part = omegaconf.OmegaConf.to_container(part)
        if isinstance(part, Mapping):
            yield from part.items()
            pending += part.values()
    raise ValueError("settings are nested without an end")


def _is_value(setting: Any) -> bool:
    """Return whether Python's eval cannot run code from a setting: eval also takes bytes."""
    pending = [setting]
    for _ in range(_MOST_SETTINGS):
        if not pending:
            return True
        part = pending.pop()
        if isinstance(part, (omegaconf.DictConfig, omegaconf.ListConfig)):
            part = omegaconf.OmegaConf.to_container(part)
        if isinstance(part, Mapping):
            pending += part.values()
        elif isinstance(part, (list, tuple)):
            pending += part
        elif isinstance(part, str):
            if not _is_value_as_text(part):
                return False
        elif part is not None and not isinstance(part, numbers.Real):
            return False
    return False


def _is_value_as_text(setting: str) -> bool:
    if "${" in setting:  # omegaconf would insert another setting, even between quotes
        return False
    try:
        tree = ast.parse(setting.strip(), mode="eval")
    except (SyntaxError, ValueError):  # eval raises the same error
        return True
    except (RecursionError, MemoryError):
        return False
    return all(isinstance(node, _VALUES) for node in ast.walk(tree))


def load_checkpoint(path: str | os.PathLike, with_tensors: bool = True) -> dict[str, Any]:
    """Read a checkpoint into CPU memory; refuse one that would run code.

    Args:
        path: a checkpoint that was saved by PyTorch 1.6 or later.
        with_tensors: whether to read the tensors; otherwise they are on the ``meta`` device.

    Returns:
        The dictionary that ``fairseq-train`` saved. Later changes of the file do not affect it.

    Raises:
        CheckpointError: the file is missing, damaged, being changed or not a checkpoint, it holds
            something that a fairseq checkpoint does not need, or a setting in it is code.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise CheckpointError(f"{path}: is a folder, not a checkpoint")
    if not os.path.isfile(path):
        raise CheckpointError(f"{path}: no such file")
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("truncated, or not a checkpoint of PyTorch 1.6 or later")
        state = read_archive(path, with_tensors)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused, because it holds something that a fairseq checkpoint does not "
            f"need, and loading it could run code ({_reason(error)})"
        ) from error
    except Exception as error:  # damaged files raise many kinds of exceptions
        raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from error
    _check_fields(path, state)
    try:
        check_settings({name: state.get(name) for name in ("args", "cfg")})
    except ValueError as error:
        raise CheckpointError(f"{path}: refused, because its {error}") from error
    return state


def settings_of(state: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Return the settings of one part of a checkpoint's run, whatever form they have.

    Args:
        state: the loaded checkpoint.
        part: ``model`` or ``task``; without a ``cfg``, the settings of all parts are returned.

    Returns:
        Names and values; empty if the checkpoint has none.
    """
    settings = state.get("args")
    if settings is None:
        settings = (state.get("cfg") or {}).get(part)
    return _as_mapping(settings)


def _as_mapping(settings: Any) -> Mapping[str, Any]:
    return vars(settings) if isinstance(settings, argparse.Namespace) else settings or {}


def _check_fields(path: str, state: Any) -> None:
    """Refuse a checkpoint whose fields are not of the types that fairseq saves.

    Raises:
        CheckpointError: the message names the first such field.
    """
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a checkpoint")
    cfg = state.get("cfg")
    settings = (dict, argparse.Namespace)
    fields = [("args", state.get("args"), argparse.Namespace), ("cfg", cfg, dict)]
    fields += [(name, state.get(name), dict) for name in ("model", "extra_state")]
    fields += [("optimizer_history", state.get("optimizer_history"), list)]
    fields += [
        (f"cfg.{name}", part, settings)
        for name, part in (cfg.items() if isinstance(cfg, dict) else ())
        if name in _PARTS
    ]
    for name, value, types in fields:
        if value is not None and not isinstance(value, types):
            raise CheckpointError(f"{path}: damaged: {name} is a {type(value).__name__}")
        if types is settings or name == "model":
            if not all(isinstance(key, str) for key in _as_mapping(value)):
                raise CheckpointError(f"{path}: damaged: {name} has an entry without a name")
    for entry in state.get("optimizer_history") or ():
        if not isinstance(entry, dict):
            raise CheckpointError(f"{path}: damaged: optimizer_history has no dictionaries")


def _reason(error: Exception) -> str:
    """Return the first line of a message; it stands in brackets."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")

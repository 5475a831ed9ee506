"""Averaging the parameters of several checkpoints of one training run."""

import copy
import os
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_sparse.checkpoints import mapping_flags
from fairseq_sparse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_sparse.checkpoints.names import EPOCH, UPDATE
from fairseq_sparse.errors import CheckpointError
from fairseq_sparse.files import replacing

# Settings of a checkpoint that are paths, and what takes their place in one to give away.
_PATHS = {"user_dir": None, "data": ".", "save_dir": "checkpoints", "log_file": None}
_PATHS |= {"tensorboard_logdir": None, "finetune_from_model": None, "restore_file": "model.pt"}
# fairseq reads these vectors again whenever it builds the model.
_PATHS |= {"encoder_embed_path": None, "decoder_embed_path": None}
# Of the whole run, which the settings of a model may have, and the names of machines.
_PATHS |= {"continue_once": None, "ema_seed_model": None, "distributed_init_method": None}
_PATHS |= {"path": None, "results_path": None, "lm_path": None, "search_report": None}
# τ is a constant of the run, not a parameter: it is kept exactly, not averaged.
_TAU_SUFFIX = ".tau"

# Fields in which fairseq keeps the exponential average; the first, if present, is more exact.
_EMA_FIELDS = ("ema_fp32_params", "ema")

# Further settings that change what the parameters mean but not their shapes.
_MODEL_FIELDS = (
    "arch",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_normalize_before",
    "decoder_normalize_before",
    "activation_fn",
    "no_scale_embedding",
)


def last_checkpoints(folder: str | os.PathLike, count: int, by: str) -> list[str]:
    """Return the paths of the last ``count`` checkpoints in a folder, oldest first.

    Args:
        folder: fairseq's ``--save-dir``.
        count: number of checkpoints, at least 1.
        by: ``"epoch"`` (checkpointN.pt) or ``"update"`` (checkpoint_E_U.pt, N and U compared).

    Raises:
        CheckpointError: there is no such folder, or it has fewer than ``count``.
    """
    pattern = {"epoch": EPOCH, "update": UPDATE}[by]
    if not os.path.isdir(folder):
        raise CheckpointError(f"{folder}: no such folder")
    matches = filter(None, (re.fullmatch(pattern, name) for name in os.listdir(folder)))
    found = sorted((int(match.group(1)), match.group()) for match in matches)
    if len(found) < count:
        names = "checkpointN.pt" if by == "epoch" else "checkpoint_E_U.pt"
        listed = ", ".join(name for _, name in found) or "none"
        raise CheckpointError(
            f"{folder}: {count} checkpoints by {by} ({names}) are needed, "
            f"{len(found)} found ({listed})"
        )
    return [os.path.join(folder, name) for _, name in found[-count:]]


def average_checkpoints(
    paths: Sequence[str | os.PathLike],
    progress: Callable[[str], None] | None = None,
    exponential: bool = False,
) -> dict[str, Any]:
    """Average the model parameters of checkpoints of the same kind of model.

    Floating-point entries are averaged in float64 and cast back to their dtype. Integer and
    boolean entries, and the threshold τ of α-ReLU, must be equal in all and are kept as they are.
    One checkpoint is in memory at a time.

    Args:
        paths: the checkpoints; the last one gives everything but the parameters.
        progress: called with one line of text for each checkpoint.
        exponential: instead of the parameters, average their exponential moving averages, which
            ``--store-ema`` saves in each checkpoint.

    Returns:
        The state of the last checkpoint with the averaged parameters under ``"model"`` and
        without the state of the optimizer and the exponential average.

    Raises:
        CheckpointError: a file cannot be read, or does not match the first one; the message
            names the first difference.
    """
    if not paths:
        raise ValueError("there is nothing to average: no paths were given")
    reference = None
    for number, path in enumerate(map(os.fspath, paths), start=1):
        if progress is not None:
            progress(f"[{number}/{len(paths)}] {path}")
        state = stored = model = None  # frees the previous checkpoint
        state = load_checkpoint(path)
        state.pop("last_optimizer_state", None)
        stored = model = _model_of(state, path)
        if exponential:
            model = _exponential_average(state, model, path)
        if reference is None:
            reference = _Reference(path, state, model)
            sums = {
                key: value.to(torch.float64, copy=True)
                for key, value in model.items()
                if _averaged(key, value)
            }
            continue
        reference.check(path, state, model)
        for key, total in sums.items():
            total.add_(model[key])
    average = {}
    for key, value in model.items():
        if key in sums:
            average[key] = sums.pop(key).div_(len(paths)).to(stored[key].dtype)
        else:
            average[key] = value.clone()
    _tie_again(average, stored)
    for name in _EMA_FIELDS:
        (state.get("extra_state") or {}).pop(name, None)
    state["model"] = average
    return state


def check_output(path: str | os.PathLike) -> None:
    """Refuse to write a checkpoint in place of anything other than a regular file.

    Raises:
        CheckpointError: the path is a folder, a device or a pipe.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        raise CheckpointError(f"{path} is a folder: name a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise CheckpointError(f"{path} is not a regular file, and cannot be replaced by one")


def save_checkpoint(state: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Write a checkpoint so that ``path`` holds either all of it or its previous content.

    Raises:
        CheckpointError: ``path`` is not a regular file.
        OSError: the folder cannot be made or the file cannot be written.
    """
    check_output(path)
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, binary=True) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch hides what went wrong in writing
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
        file.flush()
        os.fsync(file.fileno())


def for_sharing(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint to give away: parameters in fp16 and tau as it is, without the state of
    the training and the paths of this machine."""
    halves: dict[tuple, Tensor] = {}  # tied parameters stay tied
    model = dict(state["model"])
    for key, value in model.items():
        if _averaged(key, value):
            place = (value.data_ptr(), value.shape, value.stride())
            model[key] = halves.setdefault(place, value.half())
    shared = {**copy.deepcopy({**state, "model": {}}), "model": model, "extra_state": {}}
    for section in (shared.get("cfg") or {}).values():
        settings = vars(section) if isinstance(section, Namespace) else section
        for name, value in _PATHS.items() if isinstance(settings, MutableMapping) else ():
            if settings.get(name) is not None:
                settings[name] = value
    return shared


def _averaged(key: str, value: Tensor) -> bool:
    return value.is_floating_point() and not key.endswith(_TAU_SUFFIX)


def _model_of(state: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    model = state.get("model")
    if not isinstance(model, Mapping) or not model:
        keys = ", ".join(map(str, list(state)[:8])) or "nothing"
        raise CheckpointError(
            f"{path}: not a fairseq checkpoint: no parameters under 'model' (it has: {keys})"
        )
    for key, value in model.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: model entry {key} is not a tensor but {type(value)}")
    return model


def _exponential_average(
    state: Mapping[str, Any], model: Mapping[str, Tensor], path: str
) -> dict[str, Tensor]:
    """Return the model with the exponential average in place of its parameters.

    Raises:
        CheckpointError: the checkpoint has no average, or that of another model.
    """
    extra = state.get("extra_state") or {}
    found = next((extra[name] for name in _EMA_FIELDS if extra.get(name)), None)
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{path} has no exponential average of the parameters: it was not trained with "
            "--store-ema"
        )
    averaged = {}
    for key, value in model.items():
        if not _averaged(key, value):
            averaged[key] = value
        elif getattr(found.get(key), "shape", None) == value.shape:
            averaged[key] = found[key]  # perhaps more exact than the model
        else:
            raise CheckpointError(f"{path}: the exponential average of {key} is missing or differs")
    return averaged


def _model_fields(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared fields of the model's configuration; None where one is not set."""
    settings = settings_of(state, "model")
    fields = {field: settings.get(field) for field in _MODEL_FIELDS}
    if fields["arch"] is None:  # a model that is configured by a dataclass has a name instead
        fields["arch"] = settings.get("_name")
    return fields


class _Reference:
    """The properties of the first checkpoint that every other one must share."""

    def __init__(self, path: str, state: Mapping[str, Any], model: Mapping[str, Tensor]):
        self.path = path
        self.flags = mapping_flags.read(settings_of(state, "model"))
        self.fields = _model_fields(state)
        self.entries = {key: (tuple(value.shape), value.dtype) for key, value in model.items()}
        self.kept = {
            key: value.clone() for key, value in model.items() if not _averaged(key, value)
        }

    def check(self, path: str, state: Mapping[str, Any], model: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError that names the first difference, if there is one."""
        theirs = mapping_flags.read(settings_of(state, "model"))
        if theirs != self.flags:
            raise CheckpointError(
                f"the checkpoints do not match: {path} was trained with "
                f"{mapping_flags.unlike(theirs, self.flags)}, but {self.path} with "
                f"{mapping_flags.unlike(self.flags, theirs)}"
            )
        for field, value in _model_fields(state).items():
            self._equal(path, f"the model's {field}", value, self.fields[field])
        for key in [*self.entries, *model]:
            if key not in model:
                raise CheckpointError(f"{path} has no {key}, which {self.path} has")
            if key not in self.entries:
                raise CheckpointError(f"{path} has {key}, which {self.path} lacks")
        for key, (shape, dtype) in self.entries.items():
            self._equal(path, f"the shape of {key}", tuple(model[key].shape), shape)
            self._equal(path, f"the dtype of {key}", model[key].dtype, dtype)
        for key, value in self.kept.items():
            if not torch.equal(model[key], value):
                self._differ(path, key, *_first_unequal(model[key], value))

    def _equal(self, path: str, what: str, value: Any, expected: Any) -> None:
        if value != expected:
            self._differ(path, what, value, expected)

    def _differ(self, path: str, what: str, value: Any, expected: Any) -> None:
        raise CheckpointError(
            f"the checkpoints do not match: {what} is {value} in {path}, "
            f"but {expected} in {self.path}"
        )


def _first_unequal(value: Tensor, expected: Tensor) -> tuple[Any, Any]:
    position = int((value != expected).flatten().nonzero()[0])
    return value.flatten()[position].item(), expected.flatten()[position].item()


def _tie_again(average: dict[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Make entries that shared memory in ``model`` share it again, so that they are saved once."""
    first_key: dict[tuple, str] = {}
    for key, value in model.items():
        place = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        tied_to = first_key.setdefault(place, key)
        if torch.equal(average[key], average[tied_to]):
            average[key] = average[tied_to]

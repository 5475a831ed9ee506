"""Loading fairseq checkpoints without running code that may be hidden in them.

A checkpoint is a pickle, and a pickle can name any function to call. torch's ``weights_only``
allows only what tensors need. A fairseq checkpoint needs a little more: the arguments of the
run are an ``argparse.Namespace``, and validation with ``--eval-bleu`` leaves NumPy arrays in the
saved metrics. Building these runs no code from the file. Workers also send checkpoints to each
other as pickles, in which the arguments are omegaconf objects.

fairseq evaluates some of these arguments as Python when it builds a model: they are checked too.
"""

import argparse
import ast
import collections
import numbers
import os
import pickle
import types
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import omegaconf
import torch

from fairseq_sparse.errors import CheckpointError

# NumPy 2 renamed the module that its pickles name. NumPy 1 and 2 must read each other's files.
_NUMPY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMPY_FUNCTIONS = {
    "_reconstruct": np.zeros(1).__reduce__()[0],
    "scalar": np.float64(0).__reduce__()[0],
}
_NUMPY_DTYPE_CLASSES = sorted({type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}, key=str)

_CLASSES = (argparse.Namespace, np.ndarray, np.dtype)
_ALLOWED: dict[str, Any] = {
    **{f"{cls.__module__}.{cls.__qualname__}": cls for cls in _CLASSES},
    **{
        f"{module}.{name}": function
        for module in _NUMPY_MODULES
        for name, function in _NUMPY_FUNCTIONS.items()
    },
}

# Types in the configuration of a run that fairseq's first worker sends to the others.
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

# Names that weights_only allows by itself, for torch versions that cannot be told to allow more.
# Storages are not listed, because torch.load resolves their names itself.
_ALLOWED_BY_TORCH: dict[str, Any] = {
    "collections.OrderedDict": collections.OrderedDict,
    "torch.Size": torch.Size,
    "torch.nn.parameter.Parameter": torch.nn.Parameter,
    "torch._utils._rebuild_tensor": torch._utils._rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": torch._utils._rebuild_tensor_v2,
    "torch._utils._rebuild_parameter": torch._utils._rebuild_parameter,
}

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
_VALUES = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Name, ast.Attribute)
_VALUES += (ast.UnaryOp, ast.UAdd, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Load)


def allow_fairseq_checkpoints() -> None:
    """Let ``torch.load(..., weights_only=True)`` read what fairseq writes, and its workers send.

    From version 2.6 torch loads with ``weights_only=True`` unless told otherwise, and fairseq
    does not tell it otherwise. This adds the few harmless types of a fairseq checkpoint to those
    that torch accepts; everything else is still refused. Calling it again changes nothing. With
    torch < 2.4, which has no such list and loads with ``weights_only=False``, it does nothing.
    """
    if not hasattr(torch.serialization, "add_safe_globals"):
        return
    from fairseq.distributed.utils import _TensorPlaceholder  # for a tensor sent separately

    if torch.__version__ >= (2, 6):
        allowed = [(value, name) for name, value in _ALLOWED.items()]
    else:  # 2.4 and 2.5 accept no names, only objects under their current names
        allowed = list(dict.fromkeys(_ALLOWED.values()))
    allowed += [*_SENT_CLASSES, _TensorPlaceholder]
    torch.serialization.add_safe_globals([*allowed, *_NUMPY_DTYPE_CLASSES])


class _RestrictedUnpickler(pickle.Unpickler):
    """Unpickler that resolves only the names in the two tables above."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = f"{module_name}.{global_name}"
        for table in (_ALLOWED, _ALLOWED_BY_TORCH):
            if name in table:
                return table[name]
        if name == "_codecs.encode":  # how pickle protocol 2 writes bytes, as in a NumPy array
            return _encode
        raise pickle.UnpicklingError(f"Unsupported global: {name}")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode(encoding)


def _restricted_pickle_module() -> types.ModuleType:
    """Return a module for ``torch.load(pickle_module=...)`` with the restricted unpickler."""
    module = types.ModuleType("restricted_pickle")
    module.Unpickler = _RestrictedUnpickler
    return module


def check_settings(settings: Any) -> None:
    """Refuse settings that would run code where fairseq evaluates them.

    Args:
        settings: those of a model or of a whole run: a mapping or namespace, nested or not.

    Raises:
        ValueError: a setting contains code; the message names the flag and the code.
    """
    for name, value in _settings(settings):
        if name in EVALUATED_SETTINGS and not _is_value(value):
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is {value!r:.80}: code that fairseq would run, not a value")


def _settings(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each setting, at any depth."""
    pending = [settings]
    while pending:
        part = pending.pop()
        if isinstance(part, argparse.Namespace):
            part = vars(part)
        elif isinstance(part, omegaconf.DictConfig):
            part = omegaconf.OmegaConf.to_container(part)
        if isinstance(part, Mapping):
            yield from part.items()
            pending += part.values()


def _is_value(setting: Any) -> bool:
    """Return whether Python's eval cannot run code from a setting: eval also takes bytes."""
    if isinstance(setting, (omegaconf.DictConfig, omegaconf.ListConfig)):
        setting = omegaconf.OmegaConf.to_container(setting)
    if isinstance(setting, Mapping):
        return all(map(_is_value, setting.values()))
    if isinstance(setting, (list, tuple)):
        return all(map(_is_value, setting))
    if not isinstance(setting, str):
        return setting is None or isinstance(setting, numbers.Real)
    if "${" in setting:  # omegaconf would insert another setting, even between quotes
        return False
    try:
        tree = ast.parse(setting.strip(), mode="eval")
    except (SyntaxError, ValueError):  # eval raises the same error
        return True
    except (RecursionError, MemoryError):
        return False
    return all(isinstance(node, _VALUES) for node in ast.walk(tree))


def load_checkpoint(path: str | os.PathLike) -> dict[str, Any]:
    """Read a checkpoint into CPU memory; refuse one that would run code.

    Works on every torch version that the package supports: with ``weights_only=True`` where
    fairseq's types can be added to it (torch >= 2.4), else with an unpickler that knows the same
    types. Tensors are memory-mapped, so unused ones (the state of the optimizer) are not read; do
    not change any of them in place.

    Returns:
        The dictionary that ``fairseq-train`` saved.

    Raises:
        CheckpointError: the file is missing, truncated or not a checkpoint, it names something
            that a fairseq checkpoint does not need, or a setting in it is code.
    """
    path = os.fspath(path)
    _check_archive(path)
    options: dict[str, Any] = {"map_location": "cpu", "mmap": True}
    if hasattr(torch.serialization, "add_safe_globals"):
        allow_fairseq_checkpoints()
        options["weights_only"] = True
    else:
        options.update(weights_only=False, pickle_module=_restricted_pickle_module())
    try:
        state = torch.load(path, **options)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused, because it holds something that a fairseq checkpoint does not "
            f"need, and loading it could run code ({_reason(error)})"
        ) from error
    except Exception as error:  # damaged files raise many kinds of exceptions
        raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a checkpoint")
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
    return vars(settings) if isinstance(settings, argparse.Namespace) else settings or {}


def _check_archive(path: str) -> None:
    """Refuse a file that ``torch.save`` did not write, before torch is asked to load it.

    Raises:
        CheckpointError: there is no such file, or it is of another kind.
    """
    if os.path.isdir(path):
        raise CheckpointError(f"{path}: is a folder, not a checkpoint")
    if not os.path.isfile(path):
        raise CheckpointError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path}: truncated, or not a checkpoint of PyTorch 1.6 or later")
    try:
        records = torch._C.PyTorchFileReader(path).get_all_records()
        with zipfile.ZipFile(path) as archive:
            compressed = any(member.compress_type for member in archive.infolist())
    except (OSError, RuntimeError, zipfile.BadZipFile):
        records, compressed = [], False
    # A TorchScript archive has code, which torch < 2.4 would run.
    if "data.pkl" not in records or "constants.pkl" in records:
        raise CheckpointError(f"{path}: an archive of another kind, not a checkpoint")
    if compressed:  # memory-mapped, the compressed bytes would be taken for parameters
        raise CheckpointError(f"{path}: was compressed by another program: unpack the original")


def _reason(error: Exception) -> str:
    """Return the sentence of torch's message that names the cause."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    for line in lines:
        if "unsupported" in line.lower() or "Can only" in line:
            lines = [line.split("error: ")[-1]]
    return lines[0].split(". ")[0].strip().rstrip(".")

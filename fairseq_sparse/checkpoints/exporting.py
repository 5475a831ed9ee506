"""Exports checkpoints of softmax models to stock fairseq, where they do not need this package."""

import os
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingConfig
from fairseq.tasks.translation import TranslationConfig

from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.errors import CheckpointError
from fairseq_sparse.models.transformer_sparse import FUSED_COPIES
from fairseq_sparse.modules.attention_config import (
    FLAG_PLACES,
    AttentionConfig,
    GlobalAttentionConfig,
)
from fairseq_sparse.modules.output_config import OutputConfig
from fairseq_sparse.tasks.language_modeling_sparse import LanguageModelingSparseConfig
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig

_OUR_MODELS = re.compile(r"^(transformer|transformer_lm|lstm)_sparse")
_OUR_CRITERIONS = ("entmax_loss", "alpha_relu_loss")
# The constant threshold of alpha-ReLU, which changes no order of the logits.
_TAU = "decoder.output_projection.tau"
# Architectures that are stock's lstm with other sizes; the checkpoint stores the sizes.
_LSTM_SIZES = ("lstm_morph", "lstm_mt")


def _names(*configs: type) -> set[str]:
    return {field.name for config in configs for field in fields(config)}


_OUR_MODEL_FIELDS = _names(OutputConfig, AttentionConfig, GlobalAttentionConfig)
_OUR_MODEL_FIELDS.add("criterion_name")  # of earlier language models
# Our tasks, each with the stock task that it extends.
_TASKS = {
    "translation_sparse": ("translation", TranslationSparseConfig, TranslationConfig),
    "language_modeling_sparse": (
        "language_modeling",
        LanguageModelingSparseConfig,
        LanguageModelingConfig,
    ),
}
_OUR_TASK_FIELDS = {
    name for _, ours, stock in _TASKS.values() for name in _names(ours) - _names(stock)
}


def export_checkpoint(path: str | os.PathLike, any_output: bool = False) -> dict[str, Any]:
    """Read a checkpoint of this package and convert it to one of stock fairseq.

    The parameters stay unchanged. Architecture, task and criterion get their stock names, without
    the settings that stock does not know. The state of the optimizer is left out: training can
    continue with ``--finetune-from-model``.

    Args:
        path: the checkpoint.
        any_output: take a sparse output, too, and export its logits, whose softmax has the same
            order as the sparse probabilities, but no zeros.

    Returns:
        The state for ``torch.save``; stock ``fairseq-generate --task translation`` loads it
        without ``--user-dir``.

    Raises:
        CheckpointError: the file cannot be read, is of another package or of a task that stock does
            not have, or the model is sparse; the message names the flag.
    """
    path = os.fspath(path)
    state = load_checkpoint(path)
    cfg = state.get("cfg") or {}
    model = cfg.get("model")
    model = vars(model) if isinstance(model, Namespace) else model or {}
    if not _OUR_MODELS.match(str(model.get("_name") or model.get("arch"))):
        raise CheckpointError(f"{path}: is not a checkpoint of a fairseq_sparse model")
    _check_softmax(model, path, any_output)
    forms = {"task": (dict, Namespace), "common": dict, "criterion": (dict, Namespace)}
    missing = [name for name, form in forms.items() if not isinstance(cfg.get(name), form)]
    if missing:
        raise CheckpointError(f"{path}: has no settings of {', '.join(missing)}: it is damaged")
    if not state.get("model"):
        raise CheckpointError(f"{path}: has no parameters")
    _rename(model)
    task = cfg["task"]
    task = vars(task) if isinstance(task, Namespace) else task  # a task with add_args
    _check_task(task, path)
    for name in _OUR_TASK_FIELDS:
        task.pop(name, None)
    task.update((name, _stock_task(task[name])) for name in ("_name", "task") if name in task)
    cfg["common"]["user_dir"] = None
    # A criterion with add_args has a Namespace; it is stock's or the user's, and stays as it is.
    if not isinstance(cfg["criterion"], Namespace):
        cfg["criterion"] = _criterion(cfg["criterion"])
    state.pop("last_optimizer_state", None)
    state["model"] = {
        key: value
        for key, value in state["model"].items()
        if not (FUSED_COPIES.search(key) or key == _TAU)
    }
    return state


def _check_softmax(model: Mapping[str, Any], path: str, any_output: bool) -> None:
    output = () if any_output else ("output_transform",)
    for name in (*output, "attention", *(f"attention_{place}" for place in FLAG_PLACES)):
        value = model.get(name)
        if value is not None and str(value) != "softmax":
            raise CheckpointError(
                f"{path}: was trained with --{name.replace('_', '-')} {value}, which only this "
                "package has; export --to fairseq is for softmax everywhere, --to ctranslate2 for "
                "softmax attention"
            )
    if model.get("attention_bias"):
        raise CheckpointError(
            f"{path}: was trained with --attention-bias, as lstm_sparse_mt and lstm_sparse_morph "
            "are: stock fairseq's LSTM has no bias in its attentional layer"
        )


def _check_task(task: Mapping[str, Any], path: str) -> None:
    name = str(task.get("_name") or task.get("task"))
    known = TASK_REGISTRY.get(name)
    is_stock = known is not None and known.__module__.startswith("fairseq.")
    if name not in _TASKS and not is_stock:
        raise CheckpointError(
            f"{path}: was trained with --task {name}, which stock fairseq does not have"
        )


def _stock_task(name: str) -> str:
    return _TASKS[name][0] if name in _TASKS else name


def _rename(model: dict[str, Any]) -> None:
    """Give the model's settings their stock names, and remove those of this package.

    A model that is not configured by a dataclass has the settings of the whole run.
    """
    name = str(model.get("_name") or model["arch"]).replace("_sparse", "", 1)
    for ours in _OUR_MODEL_FIELDS | _OUR_TASK_FIELDS:
        model.pop(ours, None)
    model["_name"] = "lstm" if name in _LSTM_SIZES else name
    stock = {"arch": model["_name"], "user_dir": None}
    if "task" in model:
        stock["task"] = _stock_task(str(model["task"]))
    if "criterion" in model:
        stock["criterion"] = _criterion({**model, "_name": model["criterion"]})["_name"]
    model.update((key, value) for key, value in stock.items() if key in model)


def _criterion(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stock's criterion in place of this package's; a stock criterion stays.

    Stock's label smoothing divides epsilon among the other tokens, ours among all.
    """
    if settings.get("_name", settings.get("criterion")) not in _OUR_CRITERIONS:
        return dict(settings)
    smoothing = settings.get("label_smoothing") or 0.0
    criterion = {"_name": "cross_entropy", "sentence_avg": bool(settings.get("sentence_avg"))}
    if smoothing:
        criterion.update(_name="label_smoothed_cross_entropy", label_smoothing=smoothing)
        criterion.update(report_accuracy=False, ignore_prefix_size=0)
    return criterion

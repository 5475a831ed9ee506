"""Checks, before anything is run, that the checkpoint with which training begins fits the flags.

fairseq loads any checkpoint whose parameters have the right names and sizes, and refuses all others
with "please ensure that the architectures match". Most output transforms and kinds of attention
have no parameters, so fairseq would silently continue with a different one.
"""

import os
from argparse import Namespace
from typing import Any, Optional

from omegaconf import DictConfig
from torch import nn

from fairseq_sparse.checkpoints import mapping_flags
from fairseq_sparse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_sparse.checkpoints.names import LAST
from fairseq_sparse.errors import CheckpointError


def check_first_checkpoint(args: Any, model: nn.Module) -> None:
    """Refuse a checkpoint with which training cannot begin.

    A resumed run must have the output transform and the attention of its checkpoint; fine-tuning
    may change them. Under ``--store-ema`` it must have an exponential average.

    Args:
        args: the settings of the model, as fairseq gives them to a task.
        model: the model that was built.

    Raises:
        ValueError: the message names the checkpoint, the mismatch and the remedy.
    """
    path, is_resumed = _first_checkpoint(args)
    if path is None or not os.path.isfile(path):
        return
    try:
        state = load_checkpoint(path, with_tensors=False)
    except CheckpointError:
        return  # fairseq reports the error itself
    settings = settings_of(state, "model")
    if is_resumed and settings:
        _check_resumed(path, mapping_flags.read(settings), mapping_flags.read(args))
    elif settings:
        _check_fine_tuned(path, mapping_flags.read(settings), mapping_flags.read(args))
    _check_average_of(path, state, args)
    if hasattr(model, "check_checkpoint") and isinstance(state.get("model"), dict):
        try:
            model.check_checkpoint(state["model"])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def check_resumed_run(run: DictConfig) -> None:
    """Refuse to resume a run with a different output transform or attention.

    Args:
        run: all settings of ``fairseq-train``.

    Raises:
        ValueError: the message names the checkpoint, the mismatch and the remedy.
    """
    path, is_resumed = _first_checkpoint(run["checkpoint"])
    if path is None or not is_resumed or not os.path.isfile(path):
        return
    try:
        settings = settings_of(load_checkpoint(path, with_tensors=False), "model")
    except CheckpointError:
        return  # fairseq has just read it
    if settings:
        _check_resumed(path, mapping_flags.read(settings), mapping_flags.read(run["model"]))


def check_exponential_average(args: Any, model: nn.Module) -> None:
    """Refuse an exponential average of shared parameters that fairseq computes wrongly.

    fairseq updates the average once for each name of a parameter, so a shared tensor, which has
    several names, is updated several times. Only an fp32 average of a model in half precision has
    a copy for each name.

    Args:
        args: the settings of the model, as fairseq gives them to a task.
        model: the model that was built.

    Raises:
        ValueError: the average would be wrong; the message names the remedy.
    """
    average, common = run_settings(args, "ema"), run_settings(args, "common")
    is_half = getattr(common, "fp16", False) or getattr(common, "bf16", False)
    if not getattr(average, "store_ema", False) or (average.ema_fp32 and is_half):
        return
    places = [tensor.data_ptr() for tensor in model.state_dict().values() if tensor.numel()]
    if len(set(places)) < len(places):
        raise ValueError(
            "--store-ema: fairseq would average shared embeddings several times an update; train "
            "with --ema-fp32 and --fp16 (or --bf16), or do not share them"
        )


def run_settings(args: Any, part: str) -> Any:
    """Return the settings of another part of the run (``checkpoint``, ``ema``, ...), if any, from
    those of the model."""
    if not isinstance(args, DictConfig):
        return args
    run = args._get_parent()
    return run[part] if run is not None and part in run else Namespace()


def _first_checkpoint(args: Any) -> tuple[Optional[str], bool]:
    """Return the checkpoint that fairseq will load, if any, and whether it resumes a run."""
    options = run_settings(args, "checkpoint")
    restore_file = getattr(options, "restore_file", LAST)
    is_resumed = not getattr(options, "reset_optimizer", False)
    if restore_file != LAST:
        return restore_file, is_resumed
    save_dir = getattr(options, "save_dir", None)
    if save_dir is None:  # nothing is trained
        return None, False
    last = os.path.join(save_dir, LAST)
    if os.path.isfile(last):
        return last, is_resumed
    continued = getattr(options, "continue_once", None)  # unknown to fairseq 0.12.2
    if continued is not None:
        return continued, is_resumed
    return getattr(options, "finetune_from_model", None), False


def _check_average_of(path: str, state: dict[str, Any], args: Any) -> None:
    """Refuse a checkpoint without the exponential average that ``--store-ema`` continues: fairseq
    fails to begin one from its parameters.

    Raises:
        ValueError: naming the remedy.
    """
    stores_average = getattr(run_settings(args, "ema"), "store_ema", False)
    if stores_average and "ema" not in (state.get("extra_state") or {}):
        raise ValueError(
            f"--store-ema: {path} has no exponential average to begin with; leave out --store-ema, "
            "or begin with a checkpoint of a run that had it"
        )


def _check_resumed(path: str, theirs: dict[str, str], ours: dict[str, str]) -> None:
    """Refuse to resume a run with different flags.

    Raises:
        ValueError: flags differ; the message names them.
    """

    if theirs != ours:
        raise ValueError(
            f"{path} was trained with {mapping_flags.unlike(theirs, ours)}, but this run, which "
            f"would resume it, has {mapping_flags.unlike(ours, theirs)}: choose another "
            "--save-dir, or the flags of the checkpoint. To begin with its parameters, give them "
            f"to a run in another --save-dir by --finetune-from-model {path}"
        )


def _check_fine_tuned(path: str, theirs: dict[str, str], ours: dict[str, str]) -> None:
    """Refuse to take over a tau that belongs to another alpha: it is a threshold of (alpha - 1) z.

    Raises:
        ValueError: alpha-ReLU is fine-tuned with another alpha.
    """
    alphas = [flags.get("--output-alpha") for flags in (theirs, ours)]
    both = all(flags["--output-transform"] == "alpha_relu" for flags in (theirs, ours))
    if both and alphas[0] != alphas[1]:
        raise ValueError(
            f"{path} has the tau of --output-alpha {alphas[0]}, which does not fit --output-alpha "
            f"{alphas[1]}: keep its alpha, or fine-tune a model with another output"
        )

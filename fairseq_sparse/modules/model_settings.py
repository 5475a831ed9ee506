"""Flags described by a dataclass, for models that are configured through ``add_args``.

fairseq passes such a model its settings as a flat ``Namespace`` if they come from a command line,
and as a ``DictConfig`` if they come from a Hydra file (``fairseq-hydra-train``). A ``DictConfig``
cannot take new keys, handles ``getattr`` with a default differently in each version of omegaconf,
and lacks the settings of task and criterion that a command line has. So here it is converted into
the ``Namespace`` that the same flags would have given.
"""

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Optional, Union

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture
from omegaconf import DictConfig, OmegaConf, open_dict

Architecture = Callable[[Namespace], None]
# Flags of the task that models read.
_OF_TASK = ("max_source_positions", "max_target_positions", "load_alignments")


def add_flags(parser: ArgumentParser, *configs: type[FairseqDataclass]) -> None:
    """Add the flags without defaults, so that architectures can set them."""
    for config in configs:
        gen_parser_from_dataclass(parser, config(), delete_default=True)


def set_flag_defaults(args: Namespace, *configs: type[FairseqDataclass]) -> None:
    """Fill in the flags that neither the user nor an architecture has set."""
    for config in configs:
        for flag in fields(config):
            if flag.name != "_name" and getattr(args, flag.name, None) is None:
                setattr(args, flag.name, flag.default)


def criterion_name(args: Any) -> Optional[str]:
    """Return the criterion that a model will be trained with, or None if it is not for training."""
    name = getattr(args, "criterion", None)
    # With --model-overrides the value can be the whole configuration of a criterion.
    return name if isinstance(name, str) and name else None


def architecture(model: str, name: str) -> Callable[[Architecture], Architecture]:
    """Register an architecture of a model with fairseq, for command lines and Hydra files.

    Args:
        model: the registered name of the model, whose class has ``add_args``.
        name: the name of the architecture.
    """

    def register(defaults: Architecture) -> Architecture:
        register_model_architecture(model, name)(partial(_complete, name, defaults))
        return defaults

    return register


def _complete(name: str, defaults: Architecture, args: Union[Namespace, DictConfig]) -> None:
    """Fill in the settings that were not given; check those of a Hydra file as a parser would."""
    if not OmegaConf.is_config(args):
        defaults(args)
        return
    filled = Namespace(base_layers=0)
    defaults(filled)
    parser = ArgumentParser(argument_default=SUPPRESS)
    ARCH_MODEL_REGISTRY[name].add_args(parser)
    flags = {action.dest: action for action in parser._actions}
    given = OmegaConf.to_container(args, resolve=True)
    # A complete set of settings comes from a checkpoint, perhaps of another version of fairseq,
    # and is not checked.
    if not vars(filled).keys() <= given.keys():
        unknown = given.keys() - flags.keys() - vars(filled).keys() - {"_name", "arch", *_OF_TASK}
        if unknown:
            raise ValueError(f"model.{sorted(unknown)[0]} is not a setting of {name}")
    settings = Namespace(**{key: _value(flags.get(key), value) for key, value in given.items()})
    defaults(settings)
    settings.base_layers = getattr(settings, "base_layers", 0)  # the trainer asks for it
    for key, value in vars(settings).items():
        args[key] = value


def _value(flag: Union[Action, None], value: Any) -> Any:
    """Return the value of a setting as the command-line parser would.

    Raises:
        ValueError: the flag does not take this value.
    """
    if flag is None or value is None or isinstance(value, (list, dict)):
        return value
    wanted = None
    if flag.nargs == 0:  # a switch
        wanted = None if isinstance(value, bool) else "true or false"
    elif flag.choices is not None:
        wanted = None if value in flag.choices else f"one of {', '.join(map(str, flag.choices))}"
    elif flag.type is not None:
        try:
            return flag.type(str(value))
        except (TypeError, ValueError):
            wanted = f"of type {getattr(flag.type, '__name__', flag.type)}"
    if wanted is not None:
        raise ValueError(f"model.{flag.dest} must be {wanted}, got {value!r}")
    return value


def as_namespace(args: Union[Namespace, DictConfig], task) -> Namespace:
    """Return the settings of a model as its command line would give them.

    Args:
        args: the settings that fairseq passes to the model. A ``DictConfig`` also gets the flags of
            the task that models read; the limits of lengths belong in the checkpoint.
        task: the model's task.
    """
    if not OmegaConf.is_config(args):
        return args
    with open_dict(args):
        for name in _OF_TASK:
            value = getattr(getattr(task, "cfg", None), name, None)
            if args.get(name) is None and value is not None:
                args[name] = value
    settings = Namespace(**OmegaConf.to_container(args, resolve=True))
    run = args._get_parent()
    if not hasattr(settings, "criterion"):
        criterion = run["criterion"] if run is not None and "criterion" in run else None
        settings.criterion = getattr(criterion, "_name", None)
    return settings

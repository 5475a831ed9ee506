"""Untrained models and random batches, to measure what depends on sizes only: speed, parameters."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase

from fairseq_sparse.tasks.translation_sparse import (
    TranslationSparseConfig,
    TranslationSparseTask,
)


def translation_task(source_size: int, target_size: Optional[int] = None) -> TranslationSparseTask:
    """Make a task with vocabularies of these sizes, the four special symbols included.

    With one size, source and target share the vocabulary.
    """
    source = _dictionary(source_size)
    target = source if target_size is None else _dictionary(target_size)
    return TranslationSparseTask(TranslationSparseConfig(), source, target)


def _dictionary(size: int) -> Dictionary:
    words = Dictionary()
    if size <= len(words):
        raise ValueError(f"a vocabulary has more than {len(words)} entries, not {size}")
    for number in range(size - len(words)):
        words.add_symbol(f"w{number}")
    return words


def build_model(arch: str, flags: Sequence[object], task: TranslationSparseTask) -> Any:
    """Build the model that ``fairseq-train --arch ARCH FLAGS`` would start from.

    Raises:
        ValueError: the architecture is not one of a translation Transformer, or does not have a
            flag.
    """
    model_class: Optional[type[BaseFairseqModel]] = ARCH_MODEL_REGISTRY.get(arch)
    if model_class is None or not issubclass(model_class, TransformerModelBase):
        raise ValueError(f"--arch {arch}: not an architecture of transformer_sparse or transformer")
    parser = ArgumentParser(argument_default=SUPPRESS, allow_abbrev=False)
    model_class.add_args(parser)
    args, unknown = parser.parse_known_args([str(flag) for flag in flags])
    if unknown:
        raise ValueError(f"--arch {arch} has no {' '.join(unknown)}")
    ARCH_CONFIG_REGISTRY[arch](args)
    return model_class.build_model(args, task)


def random_batch(task: TranslationSparseTask, sentences: int, length: int) -> dict[str, Any]:
    """Make sentence pairs without padding, ``length`` tokens on each side, like fairseq's
    batches."""

    def tokens(words: Dictionary) -> torch.Tensor:
        result = torch.randint(words.nspecial, len(words), (sentences, length))
        result[:, -1] = words.eos()
        return result

    target = tokens(task.target_dictionary)
    return {
        "id": torch.arange(sentences),
        "nsentences": sentences,
        "ntokens": target.numel(),
        "net_input": {
            "src_tokens": tokens(task.source_dictionary),
            "src_lengths": torch.full((sentences,), length),
            "prev_output_tokens": target.roll(1, dims=1),
        },
        "target": target,
    }

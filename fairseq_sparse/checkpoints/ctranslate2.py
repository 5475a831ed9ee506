"""Conversion of models with softmax attention to CTranslate2, which serves translation on a CPU.

CTranslate2's own converter for fairseq does the work. It knows no sparse output, so the exported
model has the softmax of the logits: each token keeps its rank at a step, since all our mappings are
monotone, but no probability is 0, and a beam adds up other scores.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import torch

from fairseq_sparse.checkpoints.exporting import export_checkpoint
from fairseq_sparse.errors import CheckpointError

# The vocabularies of a model's folder are called shared_vocabulary.json, source_vocabulary.txt, ...
_MADE = re.compile(r"model\.bin|config\.json|\w*vocabulary\.(json|txt)")


def convert_to_ctranslate2(
    path: str | os.PathLike, data: str | os.PathLike, output: Path, quantization: str | None = None
) -> None:
    """Write a folder that ``ctranslate2.Translator`` opens, in place of an earlier one.

    Args:
        path: a checkpoint of a translation model, with any output transform.
        data: the folder of its dictionaries.
        output: the folder to write.
        quantization: a type that CTranslate2 knows; None keeps the precision of the checkpoint.

    Raises:
        CheckpointError: the package ctranslate2 is missing, the checkpoint cannot be read,
            CTranslate2 does not have the model, or the folder has other files.
    """
    output = output.resolve()  # not a link, which could not be replaced by a folder
    others = sorted(path.name for path in _files(output) if not _MADE.fullmatch(path.name))
    if others:
        raise CheckpointError(f"{output} has other files ({others[0]}): name a new folder")
    try:
        from ctranslate2.converters import FairseqConverter
    except ImportError as error:
        raise CheckpointError("CTranslate2 is missing: pip install ctranslate2") from error
    state = export_checkpoint(path, any_output=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
        softmax, converted = Path(folder) / "softmax.pt", Path(folder) / "converted"
        torch.save(state, softmax)
        try:
            converter = FairseqConverter(str(softmax), str(data))
            converter.convert(str(converted), quantization=quantization)
        except (ValueError, KeyError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"{path}: CTranslate2 cannot convert it: {error}") from error
        earlier = Path(folder) / "earlier"
        if output.exists():
            output.replace(earlier)
        try:
            converted.replace(output)
        except OSError:
            if earlier.exists():
                earlier.replace(output)
            raise


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []

"""Conversion of models with softmax attention to CTranslate2, which serves translation on a CPU.

CTranslate2's own converter for fairseq does the work. It knows no sparse output, so the exported
model has the softmax of the logits: each token keeps its rank at a step, since all our mappings are
monotone, but no probability is 0, and a beam adds up other scores.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from fairseq_sparse.checkpoints.exporting import export_checkpoint
from fairseq_sparse.errors import CheckpointError

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16")
QUANTIZATIONS += ("bfloat16", "float32")


def convert_to_ctranslate2(
    path: str | os.PathLike, data: str | os.PathLike, output: Path, quantization: str | None = None
) -> None:
    """Write a folder that ``ctranslate2.Translator`` opens; an existing one is replaced.

    Args:
        path: a checkpoint of a translation model, with any output transform.
        data: the folder of its dictionaries.
        output: the folder to write.
        quantization: one of ``QUANTIZATIONS``; None keeps the precision of the checkpoint.

    Raises:
        CheckpointError: the package ctranslate2 is missing, the checkpoint cannot be read, or
            CTranslate2 does not have the model.
    """
    try:
        from ctranslate2.converters import FairseqConverter
    except ImportError as error:
        raise CheckpointError("CTranslate2 is missing: pip install ctranslate2") from error
    state = export_checkpoint(path, any_output=True)
    with tempfile.TemporaryDirectory() as folder:
        softmax = Path(folder) / "softmax.pt"
        torch.save(state, softmax)
        try:
            converter = FairseqConverter(str(softmax), str(data))
            converter.convert(str(output), quantization=quantization, force=True)
        except (ValueError, KeyError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"{path}: CTranslate2 cannot convert it: {error}") from error

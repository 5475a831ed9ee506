"""Loading of trained models, and of the data for their analysis."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
from fairseq import checkpoint_utils, utils
from fairseq.data import BaseWrapperDataset, FairseqDataset

from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.errors import AnalysisError, in_words


def load_models(paths: Sequence[Union[str, Path]], data: str) -> tuple:
    """Load the models of checkpoints, in single precision and in evaluation mode, and their task.

    Args:
        paths: the checkpoints, of one model or of an ensemble.
        data: folder that ``fairseq-preprocess`` made; it replaces the one of the checkpoint.

    Returns:
        A list of models and the task of the first.

    Raises:
        AnalysisError: a checkpoint and the data do not match.
        CheckpointError: a file is not a checkpoint, or would run code.
    """
    for path in paths:
        load_checkpoint(str(path))
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path) for path in paths], arg_overrides={"data": data, "eval_bleu": False}
        )
    except Exception as error:  # fairseq checks nothing, so any exception can occur
        names = ", ".join(map(str, paths))
        raise AnalysisError(
            f"{names} could not be loaded for the data in {data}: {in_words(error)}"
        ) from error
    for model in models:
        for layer in getattr(getattr(model, "encoder", None), "layers", []):
            # fairseq 0.12.2: the fused path of a loaded model fails under torch 2.
            if getattr(layer, "can_use_fastpath", False):
                layer.can_use_fastpath = False
    return [model.float().eval() for model in models], task


def load_subset(task, subset: str):
    """Load a part of the data.

    Raises:
        AnalysisError: there is no such part, or it is damaged.
    """
    try:
        task.load_dataset(subset)
    except (FileNotFoundError, AssertionError, ValueError) as error:
        raise AnalysisError(f"{task.cfg.data} has no readable part {subset}: {error}") from error
    return task.dataset(subset)


class ChosenSentences(BaseWrapperDataset):
    """Some sentences of a data set, which keep their numbers, from 0; those beyond its end are left
    out."""

    def __init__(self, dataset: FairseqDataset, chosen: Sequence[int]):
        super().__init__(dataset)
        self.chosen = [number for number in chosen if number < len(dataset)]

    def __len__(self):
        return len(self.chosen)

    def ordered_indices(self):
        indices = super().ordered_indices()
        return indices[np.isin(indices, self.chosen)]


def load_batches(
    task,
    models: Sequence,
    subset: str,
    max_tokens: int,
    chosen: Optional[Sequence[int]] = None,
) -> Iterator[dict[str, Any]]:
    """Load the batches of a part of the data, unshuffled, with as many sentences in each as fit.

    The task then has all of the part as its data set.

    Args:
        models: the models, which limit the length of sentences.
        max_tokens: largest number of tokens in a batch.
        chosen: the numbers of the sentences in the batches; None for all.

    Raises:
        AnalysisError: there is no such part, or ``max_tokens`` is too small for a sentence.
    """
    dataset = load_subset(task, subset)
    if chosen is not None:
        dataset = ChosenSentences(dataset, chosen)
    try:
        return task.get_batch_iterator(
            dataset,
            max_tokens=max_tokens,
            max_positions=utils.resolve_max_positions(
                task.max_positions(), *(model.max_positions() for model in models)
            ),
            ignore_invalid_inputs=True,
            disable_iterator_cache=True,
        ).next_epoch_itr(shuffle=False)
    except AssertionError as error:
        raise AnalysisError(f"--max-tokens {max_tokens}: {error}") from error

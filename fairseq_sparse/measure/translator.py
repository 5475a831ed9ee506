"""Trained translation models on a data set: teacher-forced probabilities, and search."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Optional

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.generation import is_sparse_model, scores_are_log_probs, with_distributions
from fairseq_sparse.generation.exact_search import mean_log_probs
from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.measure.model_loading import load_batches, load_models
from fairseq_sparse.modules.output_projection import OutputProjection
from fairseq_sparse.tasks.translation_sparse import (
    TranslationSparseConfig,
    TranslationSparseTask,
)

# Chunk size in steps: only this many distributions are in memory at once.
_CHUNK = 512


@dataclass(frozen=True)
class Translator:
    """A model or an ensemble, with the task that loads its data and searches with it."""

    name: str
    checkpoints: list[str]
    models: list[Any]
    task: TranslationSparseTask

    @property
    def model(self) -> Any:
        """The only model.

        Raises:
            AnalysisError: this is an ensemble.
        """
        if len(self.models) > 1:
            paths = ":".join(self.checkpoints)
            raise AnalysisError(f"--path {paths}: name one checkpoint, not an ensemble")
        return self.models[0]

    @property
    def vocabulary(self) -> int:
        return len(self.task.target_dictionary)

    @property
    def projections(self) -> list[OutputProjection]:
        """The sparse output layers of the models; fairseq's own are not among them."""
        layers = [getattr(model.decoder, "output_projection", None) for model in self.models]
        return [layer for layer in layers if isinstance(layer, OutputProjection)]

    @property
    def is_sparse(self) -> bool:
        """Whether a token can have probability 0, which a single dense model rules out."""
        return all(map(is_sparse_model, self.models))

    @property
    def is_normalised(self) -> bool:
        """Whether the probabilities of a step sum to 1."""
        return all(map(scores_are_log_probs, self.models))

    def normalised(self) -> "Translator":
        """Return the same models with the probabilities of each step divided by their sum, unless
        that is 1, as ``--score-normalization sum`` does."""
        return replace(self, models=with_distributions(self.models))

    def describe_output(self) -> str:
        """Return the names of the output transforms, with the options that distinguish them."""
        kinds = [layer.transform.describe() for layer in self.projections]
        kinds += ["softmax"] * (len(self.models) - len(kinds))
        return " + ".join(dict.fromkeys(kinds))

    def batches(
        self, subset: str, max_tokens: int, chosen: Optional[Sequence[int]] = None
    ) -> Iterable[dict[str, Any]]:
        """Return the batches of a part of the data, on the models' device; see ``load_batches``."""
        return _Batches(load_batches(self.task, self.models, subset, max_tokens, chosen), self)

    def check_lengths(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Refuse sentences that are too long for the models, EOS counted, as fairseq does.

        Raises:
            AnalysisError: there is one.
        """
        own = (model.max_positions() for model in self.models)
        limits = utils.resolve_max_positions(self.task.max_positions(), *own)
        for sentences, limit in zip((sources, targets), limits, strict=True):
            longest = max(map(len, sentences), default=0)
            if longest > limit:
                raise AnalysisError(
                    f"a sentence has {longest} tokens, but the model takes at most {limit}"
                )

    def on_device(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a batch, or its input, on the models' device."""
        cuda = next(self.models[0].parameters()).is_cuda
        return utils.move_to_cuda(sample) if cuda else sample


@dataclass(frozen=True)
class _Batches:
    batches: Any
    translator: Translator

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for sample in self.batches:
            if sample:
                yield self.translator.on_device(sample)


def load_translator(path: str, data: str, cpu: bool, name: str = "") -> Translator:
    """Load a checkpoint, or the checkpoints of an ensemble with ``:`` between them.

    Args:
        path: what ``fairseq-generate --path`` takes.
        data: folder that ``fairseq-preprocess`` made.
        cpu: keep the models on the CPU even where there is a GPU.
        name: what reports call the models; default: the path.

    Raises:
        AnalysisError: this is not a translation model, or it does not match the data.
        CheckpointError: a file is not a checkpoint, or would run code.
    """
    checkpoints = [path] if os.path.isfile(path) else path.split(":")
    models, task = load_models(checkpoints, data)
    if not isinstance(task, TranslationTask):
        raise AnalysisError(f"{path}: not a translation model: its task is {type(task).__name__}")
    # All models get the same kind of task, so that dense and sparse ones decode by the same rules;
    # search flags in the checkpoint are ignored.
    stock = [field.name for field in fields(TranslationConfig) if hasattr(task.cfg, field.name)]
    config = TranslationSparseConfig(**{name: getattr(task.cfg, name) for name in stock})
    task = TranslationSparseTask(config, task.source_dictionary, task.target_dictionary)
    if torch.cuda.is_available() and not cpu:
        models = [model.cuda() for model in models]
    return Translator(name or path, checkpoints, models, task)


@dataclass(frozen=True)
class ForcedSteps:
    """Some teacher-forced steps.

    Attributes:
        log_p: log-probabilities of the next token, ``[steps, V]``, fp32; -inf where p is 0.
        token: the token that was given, ``[steps]``.
        sentence: the row of the batch that the step belongs to, ``[steps]``.
        position: the step's place in its sentence, from 0, ``[steps]``.
        logits: ``[steps, V]``; None for an ensemble and for adaptive softmax, which have none.
    """

    log_p: Tensor
    token: Tensor
    sentence: Tensor
    position: Tensor
    logits: Optional[Tensor] = None

    @property
    def token_log_p(self) -> Tensor:
        """The log-probability of the token that was given, ``[steps]``."""
        return self.log_p.gather(1, self.token.unsqueeze(1)).squeeze(1)


@torch.no_grad()
def forced_steps(
    models: Sequence, net_input: dict[str, Tensor], target: Tensor, padding: int
) -> Iterator[ForcedSteps]:
    """Yield the probabilities of every step, given the target sentences.

    Those of an ensemble are the mean over its models. Steps come sentence by sentence, from left to
    right and in chunks, so that a batch's probabilities are never all in memory.

    Args:
        models: the models of an ensemble, or a single one.
        net_input: fairseq's ``src_tokens``, ``src_lengths`` and ``prev_output_tokens``.
        target: ``[batch, target length]``.
        padding: the padding token of the target, which is not a step.
    """
    real = target.ne(padding)
    sentence, token, position = real.nonzero()[:, 0], target[real], (real.cumsum(1) - 1)[real]
    features = [_features(model, net_input) for model in models]
    features = [(rows[real], layer) for rows, layer in features]
    has_logits = len(models) == 1 and getattr(models[0].decoder, "adaptive_softmax", None) is None
    for start in range(0, len(token), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        # [1, steps, d], because adaptive softmax wants a batch
        outputs = [layer(part[chunk].unsqueeze(0)) for part, layer in features]
        log_p = mean_log_probs(
            [
                model.get_normalized_probs((output, None), log_probs=True)[0]
                for model, output in zip(models, outputs, strict=True)
            ]
        )
        logits = outputs[0][0] if has_logits else None
        yield ForcedSteps(log_p, token[chunk], sentence[chunk], position[chunk], logits)


def _features(model, net_input):
    """Return the decoder's features, ``[batch, target length, d]``, and its output layer."""
    previous = net_input["prev_output_tokens"]
    encoder_out = model.encoder.forward_torchscript(net_input)
    try:
        features = model.decoder.extract_features(previous, encoder_out=encoder_out)[0]
        return features, model.decoder.output_layer
    except NotImplementedError:  # the decoder does not separate its output layer
        return model.decoder(previous, encoder_out=encoder_out)[0], lambda logits: logits


def with_targets(
    net_input: dict[str, Tensor], targets: Sequence[Tensor], dictionary: Dictionary
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the arguments of :func:`forced_steps` for one target per source sentence.

    Args:
        net_input: fairseq's ``src_tokens`` and ``src_lengths``.
        targets: tokens, EOS at the end.
        dictionary: that of the target language.

    Returns:
        ``net_input`` with ``prev_output_tokens``, and the target, each ``[batch, target length]``.
    """
    pad, eos = dictionary.pad(), dictionary.eos()
    targets = [target.to(net_input["src_tokens"].device) for target in targets]
    previous = collate_tokens(targets, pad, eos, move_eos_to_beginning=True)
    return {**net_input, "prev_output_tokens": previous}, collate_tokens(targets, pad, eos)


def score_targets(
    translator: Translator, net_input: dict[str, Tensor], targets: Sequence[Tensor]
) -> Tensor:
    """Return the log-probability of one target per sentence, ``[batch]``, fp64 on the CPU.

    ``net_input`` and ``targets`` are those of :func:`with_targets`.

    Raises:
        ValueError: there is a NaN.
    """
    dictionary = translator.task.target_dictionary
    net_input, target = with_targets(net_input, targets, dictionary)
    log_p = torch.zeros(len(targets), dtype=torch.float64)
    for steps in forced_steps(translator.models, net_input, target, dictionary.pad()):
        log_p.index_add_(0, steps.sentence.cpu(), steps.token_log_p.double().cpu())
    refuse_nan(log_p)
    return log_p


def search(
    translator: Translator,
    batches: Iterable[dict[str, Any]],
    beam: int,
    nbest: int = 1,
    exact_nodes: int = 0,
) -> Iterator[tuple[dict[str, Any], list[list[dict[str, Any]]]]]:
    """Search with a beam as ``fairseq-generate --beam BEAM --nbest NBEST`` does.

    Args:
        exact_nodes: if not 0, look for the most probable translation of all, as ``--unnormalized
            --exact-search --exact-search-nodes`` does; a batch is then one sentence.

    Yields:
        Each batch, and for each of its sentences the hypotheses, best first, as fairseq's
        generators give them.
    """
    models, task = translator.models, translator.task
    if exact_nodes:
        config = replace(task.cfg, exact_search=True, exact_search_nodes=exact_nodes)
        task = TranslationSparseTask(config, task.source_dictionary, task.target_dictionary)
    options = GenerationConfig(beam=beam, nbest=nbest, unnormalized=bool(exact_nodes))
    generator = task.build_generator(models, options)
    for sample in batches:
        with torch.no_grad():
            yield sample, generator.generate(models, sample)


def with_references(batches: Iterable[dict[str, Any]], subset: str) -> Iterator[dict[str, Any]]:
    """Yield the batches of a part of the data, which must have references.

    Raises:
        AnalysisError: it has none.
    """
    for sample in batches:
        if sample["target"] is None:
            raise AnalysisError(f"--subset {subset}: there are no references")
        yield sample


def with_best_translations(
    translator: Translator, batches: Iterable[dict[str, Any]], beam: int
) -> Iterator[dict[str, Any]]:
    """Yield the batches with the best translations of :func:`search` instead of the references."""
    dictionary = translator.task.target_dictionary
    for sample, hypotheses in search(translator, batches, beam):
        best = [hypos[0]["tokens"] for hypos in hypotheses]
        net_input, target = with_targets(sample["net_input"], best, dictionary)
        yield {**sample, "net_input": net_input, "target": target}

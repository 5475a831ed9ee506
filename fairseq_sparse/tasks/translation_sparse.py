"""``--task translation_sparse``: translation with a search that is safe for exact zeros."""

import json
import logging
import math
import weakref
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_sparse.checkpoints.compatibility import check_first_checkpoint
from fairseq_sparse.checkpoints.safety import check_settings
from fairseq_sparse.criterions.sparse_criterion import SparseCriterion
from fairseq_sparse.generation.alignment import SparseSequenceScorer, moves_padding
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator
from fairseq_sparse.generation.normalized_scores import NormalizedScores
from fairseq_sparse.generation.search_report import SearchReport
from fairseq_sparse.generation.sparse_sequence_generator import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
    is_sparse_model,
    scores_are_log_probs,
)
from fairseq_sparse.modules.sparse_attention import has_sparse_attention
from fairseq_sparse.tasks.energy_logging import LogsEnergy

logger = logging.getLogger(__name__)

# What --exact-search does not know, and the value that each has where it is not given.
_NOT_EXACT = {
    "sampling": False,
    "diverse_beam_groups": -1,
    "diversity_rate": -1.0,
    "constraints": None,
    "match_source_len": False,
    "no_repeat_ngram_size": 0,
    "unkpen": 0,
    "lm_path": None,
    "print_alignment": None,
    "print_step": False,
    "retain_dropout": False,
}
# Numbers that scores are multiplied by or added to: with an infinite one, 0 * inf would be NaN.
_FINITE = ("temperature", "lenpen", "max_len_a", "lm_weight", "diverse_beam_strength")
_FINITE += ("diversity_rate", "sampling_topp")
# What --score-reference, which searches nothing, has no use for.
_SEARCH_FLAGS = ("search_report", "score_normalization", "exact_search", "exact_search_nodes")


def _flags(names: list[str]) -> str:
    """Options as they are given on the command line."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _with_useful_language_model(options: dict[str, Any]) -> dict[str, Any]:
    """The generator's options without a language model whose weight is 0.

    The search would still multiply its log-probabilities by the weight: 0 * -inf is NaN.

    Raises:
        ValueError: a sparse language model has a negative weight.
    """
    lm_model, weight = options.get("lm_model"), options.get("lm_weight", 1.0)
    if lm_model is None:
        return dict(options)
    if weight == 0:
        logger.warning("--lm-path has no effect, because --lm-weight is 0")
        return {name: options[name] for name in options.keys() - {"lm_model", "lm_weight"}}
    if weight < 0 and is_sparse_model(lm_model):
        raise ValueError(
            f"--lm-weight must not be negative, got {weight}: the language model of --lm-path has "
            "a sparse output, so that a token to which it gives probability 0 would get an "
            "infinite score; use a language model with --output-transform softmax"
        )
    return dict(options)


@dataclass
class TranslationSparseConfig(TranslationConfig):
    search_report: Optional[str] = field(
        default=None,
        metadata={
            "help": "write what the search proved of each sentence to this file (JSON lines; "
            "scores in nats, whereas the lines H, D and P are in bits)"
        },
    )
    score_normalization: ChoiceEnum(["none", "sum"]) = field(
        default="none",
        metadata={
            "help": "what search adds up for alpha_relu: the logarithm of its weights as they are, "
            "or (sum) of the weights divided by their sum"
        },
    )
    exact_search: bool = field(
        default=False,
        metadata={
            "help": "after the beam search, look for better translations until the best are proven "
            "or --exact-search-nodes is reached; never worse than the beam. Best with "
            "--unnormalized: a score divided by the length prunes so little that few sentences are "
            "proven, unless --max-len-a and --max-len-b are close to the real lengths"
        },
    )
    exact_search_nodes: int = field(
        default=10_000,
        metadata={
            "help": "prefixes of a sentence that --exact-search expands before it gives up and "
            "returns the best translations found, the beam's included"
        },
    )


@register_task("translation_sparse", dataclass=TranslationSparseConfig)
class TranslationSparseTask(LogsEnergy, TranslationTask):
    """Stock ``translation``, whose decoding also works for models with sparse outputs.

    Training and data are those of ``translation``. ``fairseq-generate``, ``fairseq-interactive``
    and ``--eval-bleu`` decode with :class:`SparseSequenceGenerator` as soon as one model of the
    ensemble is sparse, or a search report is wanted, and with fairseq's own generator otherwise.
    Under ``--print-alignment``, a target token that attends to no source token gets no link, and an
    LSTM's links do not depend on the padding of the batch.

    After the last sentence of ``fairseq-generate`` or ``fairseq-interactive`` the log says how many
    sentences are certified, and how many have no complete translation; under ``--eval-bleu`` the
    validation log has the latter as ``incomplete``.

    Under ``--store-ema``, validation is that of the exponential average of the parameters.

    ``fairseq-train`` on GPUs logs the energy used, see :class:`LogsEnergy`.
    """

    supports_sparse_outputs = True
    # Whether fairseq hands over the exponential average. Not before the first validation: asked
    # for earlier, it would be a copy of the model from before tau is found.
    uses_ema = False

    def __init__(self, cfg: TranslationSparseConfig, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        self.batches = None
        self.report = SearchReport()
        # The lines that fairseq-interactive has read: number of the first of its buffer, and count.
        self.first_line = self.lines = 0
        self.built_model = None
        self.validated_model = None

    def build_model(self, cfg, from_checkpoint: bool = False):
        """Same as in fairseq, except that settings containing code are refused, and checkpoints
        with which training cannot begin.

        Raises:
            ValueError: naming the setting, or the checkpoint and the remedy.
        """
        check_settings(cfg)
        self.built_model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            check_first_checkpoint(cfg, self.built_model)
        return self.built_model

    def build_criterion(self, cfg, *args, **kwargs):
        """As stock, but one that does not fit the model that was built before is refused.

        Raises:
            ValueError: naming the criterion and what it is for.
        """
        criterion = super().build_criterion(cfg, *args, **kwargs)
        if isinstance(criterion, SparseCriterion) and self.built_model is not None:
            criterion.check_model(self.built_model)
        return criterion

    def build_generator(
        self,
        models,
        args,
        seq_gen_cls=None,
        extra_gen_cls_kwargs=None,
        prefix_allowed_tokens_fn=None,
    ):
        """Build the generator that *args* asks for; sparse-aware where a model needs it.

        Raises:
            ValueError: flags do not go together, or a file cannot be written.
        """
        self._check_search(args)
        if getattr(args, "score_reference", False):
            align = getattr(args, "print_alignment", False)
            return SparseSequenceScorer(self.target_dictionary, compute_alignment=align)
        extra = _with_useful_language_model(extra_gen_cls_kwargs or {})
        models = self._normalize_scores(models)
        self.report = SearchReport(self.cfg.search_report)
        # fairseq-interactive does not say when its input is at an end.
        weakref.finalize(self, self.report.finish)
        self.first_line = self.lines = 0
        if self.cfg.exact_search:
            return self._build_exact_search(models, args)
        report = self.cfg.search_report is not None
        ours = any(is_sparse_model(model) for model in [*models, extra.get("lm_model")])
        ours |= report or getattr(args, "print_step", False)  # stock knows no steps
        align = getattr(args, "print_alignment", False)
        stock_misaligns = any(has_sparse_attention(m) or moves_padding(m) for m in models)
        if seq_gen_cls is None and align and (ours or stock_misaligns):
            seq_gen_cls = SparseSequenceGeneratorWithAlignment
            extra.update(print_alignment=align)
        elif seq_gen_cls is None and ours:
            seq_gen_cls = SparseSequenceGenerator
        if seq_gen_cls in (SparseSequenceGenerator, SparseSequenceGeneratorWithAlignment):
            nbest = getattr(args, "nbest", 1)
            extra.update(nbest=nbest, add_up_mass=report, attention=bool(align))
        return super().build_generator(models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn)

    def _check_search(self, args) -> None:
        """Refuse what is out of range or without effect, for any generator.

        Raises:
            ValueError: naming the flag and the remedy.
        """
        default = TranslationSparseConfig()
        given = [
            name for name in _SEARCH_FLAGS if getattr(self.cfg, name) != getattr(default, name)
        ]
        if given and getattr(args, "score_reference", False):
            raise ValueError(f"--score-reference does not go with {_flags(given)}")
        if "exact_search_nodes" in given and not self.cfg.exact_search:
            raise ValueError("--exact-search-nodes is for --exact-search: give both or neither")
        for name in ("beam", "nbest"):
            if getattr(args, name, 1) < 1:
                raise ValueError(f"{_flags([name])} must be at least 1, got {getattr(args, name)}")
        for name in _FINITE:
            if not math.isfinite(getattr(args, name, 1)):
                raise ValueError(
                    f"{_flags([name])} must be a finite number, got {getattr(args, name)}"
                )
        if not getattr(args, "unkpen", 0) > -math.inf:  # infinite: never <unk>
            raise ValueError(f"--unkpen must be a number above -inf, got {args.unkpen}")
        if getattr(args, "temperature", 1) <= 0:
            raise ValueError(f"--temperature must be greater than 0, got {args.temperature}")

    def _normalize_scores(self, models) -> list:
        """The models that the generator is to search with.

        Raises:
            ValueError: ``--score-normalization sum`` has no effect on them.
        """
        if self.cfg.score_normalization == "none":
            return models
        if all(map(scores_are_log_probs, models)):
            raise ValueError(
                "--score-normalization sum is for --output-transform alpha_relu; the probabilities "
                "of other models sum to 1 as they are, leave it out"
            )
        return [
            model if scores_are_log_probs(model) else NormalizedScores(model) for model in models
        ]

    def _build_exact_search(self, models, args) -> ExactSequenceGenerator:
        given = [name for name, no in _NOT_EXACT.items() if getattr(args, name, no) != no]
        if given:
            raise ValueError(f"--exact-search does not go with {_flags(given)}")
        if self.cfg.exact_search_nodes < 1:
            raise ValueError(
                f"--exact-search-nodes must be at least 1, got {self.cfg.exact_search_nodes}"
            )
        if not all(map(scores_are_log_probs, models)):
            logger.warning(
                "--exact-search can prove nothing here before it has seen every translation: the "
                "weights of alpha_relu can exceed 1, so that a prefix bounds no continuation; use "
                "--score-normalization sum"
            )
        options = {"nbest": getattr(args, "nbest", 1), "add_up_mass": False, "attention": False}
        beam = super().build_generator(models, args, SparseSequenceGenerator, options)
        return ExactSequenceGenerator(beam, self.cfg.exact_search_nodes)

    def get_batch_iterator(self, dataset, *args, epoch: int = 1, **kwargs):
        """Batches of a data set; but for the training set, no sentence is left out.

        fairseq-fixed drops a last batch whose size is no multiple of
        ``--required-batch-size-multiple`` (8): 30 test sentences would become 24 translations.
        """
        training = dataset is self.datasets.get(self.cfg.train_subset)
        if not training:
            kwargs["required_batch_size_multiple"] = 1
            if self.cfg.exact_search:  # each translation is printed as soon as it is found
                kwargs["max_sentences"] = 1
        # Sentences are put together by the seed and the epoch that the process began with: as if
        # that were the first, so that a resumed run sees the batches of an undisturbed one.
        before = self.dataset_to_epoch_iter.get(dataset)
        # fairseq-generate tells a task when it asks for batches, but not when it is done with them.
        self.batches = super().get_batch_iterator(dataset, *args, epoch=1, **kwargs)
        if self.batches is not before:
            dataset.set_epoch(epoch)
            self.batches.epoch = max(epoch, 1)
        return self.batches

    def build_dataset_for_inference(self, src_tokens, src_lengths, **kwargs):
        """Same as in fairseq; counts the lines."""
        self.first_line += self.lines
        self.lines = len(src_tokens)
        return super().build_dataset_for_inference(src_tokens, src_lengths, **kwargs)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Decode a batch, and after the last one log what the search found out."""
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        total = None
        if self.cfg.exact_search and self.batches is not None and "id" in sample:
            total = sum(map(len, self.batches.frozen_batches))
        self.report.add(self._ids(sample, len(hypotheses)), hypotheses, total)
        validating = generator is getattr(self, "sequence_generator", None)
        more = self.batches is not None and self.batches.iterations_in_epoch < len(self.batches)
        if not validating and not more and "id" in sample:
            self.report.finish()
        return hypotheses

    def _ids(self, sample: dict[str, Any], size: int) -> list[int]:
        """The numbers of the sentences of a batch; fairseq-interactive does not hand them on."""
        if "id" in sample:
            return sample["id"].tolist()
        if self.batches is None:
            return list(range(size))
        batch = self.batches.frozen_batches[self.batches.iterations_in_epoch - 1]
        dataset = self.batches.dataset
        # In the order of the batch, which is not that of the lines.
        numbers = dataset.collater([dataset[number] for number in batch])["id"]
        return [self.first_line + number for number in numbers.tolist()]

    def begin_valid_epoch(self, epoch, model):
        super().begin_valid_epoch(epoch, model)
        self.uses_ema = True

    def valid_step(self, sample, model, criterion, ema_model=None):
        """As of stock, with the exponential average of the parameters where there is one."""
        if ema_model is not None:
            model = ema_model.eval()
            self._decode_with(model)
        self.report.reset()
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if isinstance(getattr(self, "sequence_generator", None), SparseSequenceGenerator):
            logging_output["_incomplete"] = self.report.incomplete
        self.report.reset()
        return loss, sample_size, logging_output

    def _decode_with(self, model) -> None:
        """Let ``--eval-bleu`` decode with another model than the one that was built."""
        if self.cfg.eval_bleu and model is not self.validated_model:
            options = Namespace(**json.loads(self.cfg.eval_bleu_args))
            self.sequence_generator = self.build_generator([model], options)
        self.validated_model = model

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if any("_incomplete" in log for log in logging_outputs):
            total = sum(log.get("_incomplete", 0) for log in logging_outputs)
            metrics.log_scalar_sum("incomplete", total, round=0)

"""Lets any task of fairseq decode sparse models."""

import logging
import math
import weakref
from dataclasses import dataclass, field, fields, replace
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.search import Sampling

from fairseq_sparse.generation.alignment import (
    SparseSequenceScorer,
    attends_source,
    moves_padding,
)
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator
from fairseq_sparse.generation.normalized_scores import (
    is_sparse_model,
    scores_are_log_probs,
    with_distributions,
)
from fairseq_sparse.generation.search_report import SearchReport
from fairseq_sparse.generation.sparse_sequence_generator import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
)
from fairseq_sparse.generation.truncated_sampling import TruncatedSampling
from fairseq_sparse.modules.sparse_attention import has_sparse_attention

logger = logging.getLogger(__name__)

# Options that --exact-search does not support, with their default values.
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
# Options that scores are multiplied by or added to: if one were infinite, 0 * inf would be NaN.
_FINITE = ("temperature", "lenpen", "max_len_a", "lm_weight", "diverse_beam_strength")
_FINITE += ("diversity_rate", "sampling_topp")


@dataclass
class SamplingConfig(FairseqDataclass):
    sampling_minp: float = field(
        default=0.0,
        metadata={
            "help": "with --sampling: sample from the tokens whose probability is at least this "
            "share of the largest one"
        },
    )
    sampling_epsilon: float = field(
        default=0.0,
        metadata={
            "help": "with --sampling: sample from the tokens with at least this probability, or "
            "the most probable one if there is none"
        },
    )


@dataclass
class SparseDecodingConfig(SamplingConfig):
    search_report: Optional[str] = field(
        default=None,
        metadata={
            "help": "write what the search proved about each sentence to this file (JSON lines; "
            "scores in nats, whereas the lines H, D and P are in bits)"
        },
    )
    score_normalization: ChoiceEnum(["none", "sum"]) = field(
        default="none",
        metadata={
            "help": "the token scores of alpha_relu in the search: the logarithm of its weights "
            "(none), or of the weights divided by their sum (sum)"
        },
    )
    exact_search: bool = field(
        default=False,
        metadata={
            "help": "after the beam search, look for better translations until the best are proven "
            "or --exact-search-nodes is reached; the result is never worse than the beam's. Works "
            "best with --unnormalized: scores divided by the length prune so little that few "
            "results are proven, unless --max-len-a and --max-len-b are close to the real lengths"
        },
    )
    exact_search_nodes: int = field(
        default=10_000,
        metadata={
            "help": "number of prefixes per sentence that --exact-search expands before it gives "
            "up and returns the best translations found, including the beam's"
        },
    )


class SparseDecodingMixin:
    """Mixin, listed before a fairseq task, that makes its decoding safe for sparse models.

    A task whose flags are in a dataclass must extend the dataclass, too::

        @dataclass
        class MyConfig(SparseDecodingConfig, TheirConfig): ...

        @register_task("my_task", dataclass=MyConfig)
        class MyTask(SparseDecodingMixin, TheirTask): ...

    A task with ``add_args`` needs only the second class, without ``dataclass=``.

    ``fairseq-generate``, ``fairseq-interactive`` and validation decode with
    :class:`SparseSequenceGenerator` if any model, also that of ``--lm-path``, is sparse, if a
    search report or ``--print-step`` is requested, or if outputs continue prompts; with
    :class:`ExactSequenceGenerator` under ``--exact-search``; and otherwise with the task's own
    generator.
    Under ``--print-alignment``, a target token that attends to no source token gets no link, and an
    LSTM's links do not depend on the padding of the batch.

    After the last sentence of ``fairseq-generate`` or ``fairseq-interactive`` the log says how many
    sentences are certified, and how many have no complete translation.
    """

    supports_sparse_outputs = True
    # Whether outputs continue prompts, so that dense models need our generator, too.
    continues_prompts = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches = None
        self.report = SearchReport()
        self._finish_at_exit = None
        # The lines in the buffer of fairseq-interactive: the number of the first, and their count.
        self.first_line = self.lines = 0

    @classmethod
    def add_args(cls, parser) -> None:
        """Add the flags of the task, and those of :class:`SparseDecodingConfig`."""
        super().add_args(parser)
        if getattr(cls, "__dataclass", None) is None:
            gen_parser_from_dataclass(parser, SparseDecodingConfig())

    @property
    def _settings(self) -> Any:
        """The task's settings, which some tasks call ``cfg`` and others ``args``."""
        return self.args if self.cfg is None else self.cfg

    @property
    def decoding(self) -> SparseDecodingConfig:
        """The settings of the mixin, with defaults where an old checkpoint lacks them."""
        defaults = {each.name: each.default for each in fields(SparseDecodingConfig)}
        found = {name: getattr(self._settings, name, x) for name, x in defaults.items()}
        return SparseDecodingConfig(**found)

    def _decoding_of(self, args) -> SparseDecodingConfig:
        """Return the settings of the mixin for a generator; those in its *args* win, where fairseq
        puts what ``--eval-bleu-args`` and calls from Python ask for."""
        names = (each.name for each in fields(SparseDecodingConfig) if each.name != "_name")
        given = {name: getattr(args, name, None) for name in names}
        return replace(self.decoding, **{k: v for k, v in given.items() if v is not None})

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
            ValueError: flags contradict each other, or a file cannot be written.
        """
        decoding = self._decoding_of(args)
        _check_search(decoding, args)
        align = getattr(args, "print_alignment", False)
        if align and not any(map(attends_source, models)):
            raise ValueError("--print-alignment: no model has attention to the source")
        if getattr(args, "score_reference", False):
            self.report = SearchReport()
            eos = super().build_generator(models, args).eos  # a language token in some tasks
            options = {"compute_alignment": align, "eos": eos}
            options["temperature"] = getattr(args, "temperature", 1.0)
            return SparseSequenceScorer(self.target_dictionary, **options)
        extra = _without_zero_weight_lm(extra_gen_cls_kwargs or {})
        self._check_words_of(extra.get("lm_model"))
        if decoding.score_normalization == "sum":
            models, extra = _with_log_probs(models, extra)
        if decoding.exact_search:
            _check_exact_search(models)
        self.report = SearchReport(decoding.search_report, continues_prompts=self.continues_prompts)
        # fairseq-interactive does not tell the task when its input ends.
        if self._finish_at_exit is not None:
            self._finish_at_exit.detach()
        self._finish_at_exit = weakref.finalize(self, self.report.finish)
        self.first_line = self.lines = 0

        kwargs = {"seq_gen_cls": seq_gen_cls, "extra_gen_cls_kwargs": extra}
        if prefix_allowed_tokens_fn is not None:  # some tasks do not accept it
            kwargs["prefix_allowed_tokens_fn"] = prefix_allowed_tokens_fn
        generator = super().build_generator(models, args, **kwargs)
        search = getattr(generator, "search", None)
        if isinstance(search, Sampling):
            search.sampling_topk = min(search.sampling_topk, len(self.target_dictionary))
            generator.search = _with_thresholds(search, self.target_dictionary, decoding)
        if seq_gen_cls is not None:
            return generator
        nbest, has_report = getattr(args, "nbest", 1), decoding.search_report is not None
        if decoding.exact_search:
            options = {"nbest": nbest, "add_up_mass": False, "attention": False}
            beam = SparseSequenceGenerator.from_generator(generator, **options)
            return ExactSequenceGenerator(beam, decoding.exact_search_nodes)
        ours = self.continues_prompts
        ours |= any(is_sparse_model(model) for model in [*models, extra.get("lm_model")])
        ours |= has_report or getattr(args, "print_step", False)  # fairseq's has no "steps"
        options = {"nbest": nbest, "add_up_mass": has_report, "attention": bool(align)}
        misaligns = any(has_sparse_attention(m) or moves_padding(m) for m in models)
        if align and (ours or misaligns):
            options["print_alignment"] = align
            return SparseSequenceGeneratorWithAlignment.from_generator(generator, **options)
        return SparseSequenceGenerator.from_generator(generator, **options) if ours else generator

    def _check_words_of(self, language_model: Any) -> None:
        """Refuse the model of ``--lm-path`` if its tokens are not those of the translations."""
        words = getattr(getattr(language_model, "decoder", None), "dictionary", None)
        if words is not None and words != self.target_dictionary:
            raise ValueError(
                "--lm-path: dict.txt, of the language model, is not the target dictionary; "
                "binarise its text with fairseq-preprocess --only-source --srcdict dict.TARGET.txt"
            )

    def get_batch_iterator(self, dataset, *args, **kwargs):
        """Return the batches of a data set. Outside training, no sentence is left out.

        fairseq-fixed drops a last batch whose size is no multiple of
        ``--required-batch-size-multiple`` (8): 30 test sentences would become 24 translations.
        """
        if "update_epoch_batch_itr" not in kwargs:  # which fairseq passes for training only
            kwargs["required_batch_size_multiple"] = 1
            if self.decoding.exact_search:  # each translation is printed as soon as it is found
                kwargs["max_sentences"] = 1
        # Kept because fairseq-generate does not tell the task when it is done with the batches.
        self.batches = super().get_batch_iterator(dataset, *args, **kwargs)
        return self.batches

    def build_dataset_for_inference(self, src_tokens, src_lengths, **kwargs):
        """Same as in fairseq; counts the lines."""
        self.count_lines(len(src_tokens))
        return super().build_dataset_for_inference(src_tokens, src_lengths, **kwargs)

    def count_lines(self, lines: int) -> None:
        """Record how many lines fairseq-interactive has read into its buffer."""
        self.first_line += self.lines
        self.lines = lines

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Decode a batch; after the last one, log what the search proved."""
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        total = None
        if isinstance(generator, ExactSequenceGenerator) and self.batches is not None:
            shard = self.batches.frozen_batches[self.batches.shard_id :: self.batches.num_shards]
            total = sum(map(len, shard)) if "id" in sample else None
        self.report.add(self._ids(sample, len(hypotheses)), hypotheses, total)
        is_validation = generator is getattr(self, "sequence_generator", None)
        more = self.batches is not None and self.batches.iterations_in_epoch < len(self.batches)
        if not is_validation and not more and "id" in sample:
            self.report.finish()
        return hypotheses

    def _ids(self, sample: dict[str, Any], size: int) -> list[int]:
        """Return the numbers of a batch's sentences; fairseq-interactive does not hand them on."""
        if "id" in sample:
            return sample["id"].tolist()
        if self.batches is None:
            return list(range(size))
        batch = self.batches.frozen_batches[self.batches.iterations_in_epoch - 1]
        dataset = self.batches.dataset
        # Collate, because the order within the batch is not that of the lines.
        numbers = dataset.collater([dataset[number] for number in batch])["id"]
        return [self.first_line + number for number in numbers.tolist()]


def _flags(names: list[str]) -> str:
    """Return options as they are given on the command line."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _check_search(decoding: SparseDecodingConfig, args) -> None:
    """Refuse options that are out of range or without effect, for any generator.

    Raises:
        ValueError: an option is refused; the message names it and the remedy.
    """
    changed = [
        each.name
        for each in fields(SparseDecodingConfig)
        if each.name != "_name" and getattr(decoding, each.name) != each.default
    ]
    if changed and getattr(args, "score_reference", False):
        raise ValueError(f"--score-reference does not go with {_flags(changed)}")
    if "exact_search_nodes" in changed and not decoding.exact_search:
        raise ValueError("--exact-search-nodes is for --exact-search: give both or neither")
    if decoding.exact_search_nodes < 1:
        raise ValueError(
            f"--exact-search-nodes must be at least 1, got {decoding.exact_search_nodes}"
        )
    for name in ("beam", "nbest"):
        if getattr(args, name, 1) < 1:
            raise ValueError(f"{_flags([name])} must be at least 1, got {getattr(args, name)}")
    for name in _FINITE:
        if not math.isfinite(getattr(args, name, 1)):
            raise ValueError(f"{_flags([name])} must be a finite number, got {getattr(args, name)}")
    if not getattr(args, "unkpen", 0) > -math.inf:  # infinite: never <unk>
        raise ValueError(f"--unkpen must be a number above -inf, got {args.unkpen}")
    if getattr(args, "temperature", 1) < 1e-30:  # logits divided by less could overflow
        raise ValueError(f"--temperature must be at least 1e-30, got {args.temperature}")
    thresholds = [each.name for each in fields(SamplingConfig) if each.name in changed]
    for name in thresholds:
        if not 0 < getattr(decoding, name) <= 1:
            raise ValueError(
                f"{_flags([name])} must lie in [0, 1], 0 for none, got {getattr(decoding, name)}"
            )
    if thresholds and not getattr(args, "sampling", False):
        raise ValueError(f"{_flags(thresholds)}: give --sampling as well, or neither")
    given = [name for name, no in _NOT_EXACT.items() if getattr(args, name, no) != no]
    if decoding.exact_search and given:
        raise ValueError(f"--exact-search does not go with {_flags(given)}")


def _with_thresholds(search: Sampling, dictionary, decoding: SamplingConfig) -> Sampling:
    """Return fairseq's sampling with the thresholds of this package, if there are any."""
    if decoding.sampling_minp == 0 and decoding.sampling_epsilon == 0:
        return search
    given = (search.sampling_topk, search.sampling_topp)
    thresholds = (decoding.sampling_minp, decoding.sampling_epsilon)
    return TruncatedSampling(dictionary, *given, *thresholds)


def _check_exact_search(models) -> None:
    """Refuse models that exact search does not support, and warn about those it cannot help.

    Raises:
        ValueError: a model has no source sentence.
    """
    if not all(hasattr(model, "encoder") for model in models):
        raise ValueError("--exact-search does not go with a language model: it translates")
    if not all(map(scores_are_log_probs, models)):
        logger.warning(
            "--exact-search can prove nothing here before it has seen every translation: the "
            "weights of alpha_relu can exceed 1, so the score of a prefix does not bound its "
            "continuations; use --score-normalization sum"
        )


def _with_log_probs(models, options: dict[str, Any]) -> tuple[list, dict[str, Any]]:
    """Return the models, and the generator's options with the language model, with probabilities
    that sum to 1.

    Raises:
        ValueError: the probabilities of all models sum to 1 already.
    """
    lm_models = [options["lm_model"]] if "lm_model" in options else []
    if all(map(scores_are_log_probs, [*models, *lm_models])):
        raise ValueError(
            "--score-normalization sum is for --output-transform alpha_relu; the probabilities "
            "of other models already sum to 1; leave it out"
        )
    if lm_models:
        options = {**options, "lm_model": with_distributions(lm_models)[0]}
    return with_distributions(models), options


def _without_zero_weight_lm(options: dict[str, Any]) -> dict[str, Any]:
    """Return the generator's options without a language model whose weight is 0.

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

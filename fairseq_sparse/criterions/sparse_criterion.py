"""The criterion of this package, under two names: it logs the loss that the model computes."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from fairseq.logging.meters import AverageMeter
from fairseq.utils import get_perplexity
from omegaconf import II, OmegaConf
from torch import Tensor

from fairseq_sparse.checkpoints import compatibility
from fairseq_sparse.modules.flag_checks import check_settings_of_model
from fairseq_sparse.modules.output_projection import OutputLoss

PRIORS = ("uniform", "unigram")
_COUNTED_AT_ONCE = 1000  # sentences


@dataclass
class SparseCriterionConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.0,
        metadata={"help": "Fenchel-Young label smoothing: targets (1 - eps) e_y + eps u"},
    )
    label_smoothing_prior: ChoiceEnum(PRIORS) = field(
        default="uniform",
        metadata={
            "help": "u of --label-smoothing: 'uniform', or 'unigram', the relative frequency of "
            "each token in the target text of the training set"
        },
    )
    no_fused_loss: bool = field(
        default=False,
        metadata={"help": "compute all logits, then their loss: the same, but slower"},
    )
    sentence_avg: bool = II("optimization.sentence_avg")


class SparseCriterion(FairseqCriterion):
    """The loss that belongs to the output transform of the model.

    The model holds the transform, alpha and tau, and computes the loss itself. Each subclass has
    a ``name``, by which a transform refers to the criterion that trains it.

    Logged for training and validation: ``loss`` (nats per token), ``accuracy`` (%), ``nonzeros``
    (mean number of tokens of nonzero probability), ``gold_zero`` (% of gold tokens of probability
    0), ``prob_sum`` (mean sum of the probabilities), ``tau`` (mean threshold; none for softmax) and
    ``logit_norm`` (mean Euclidean norm of the logits). For validation also ``sentence_accuracy``
    (% of sentences in which every token has the largest logit under teacher forcing: exactly those
    that greedy search finds, unless alpha-ReLU gives all tokens of a step the weight 0). In
    training, all but the loss are of a sample of the positions of each batch
    (``TRAINING_STATISTICS_TOKENS``).

    If the task has an attribute ``perplexity_epsilon`` (``language_modeling_sparse``), also
    ``ppl``, ``eps_ppl``, ``sparsemax_score`` and ``js_divergence``: see :func:`lm_measures`.
    ``ppl`` of a sparse output is its eps-perplexity, because it would be infinite otherwise.
    """

    name = ""
    # The run's settings, set only if its task does not check the checkpoint that it resumes.
    run = None

    def __init__(
        self,
        task,
        label_smoothing: float,
        no_fused_loss: bool,
        sentence_avg: bool,
        label_smoothing_prior: str = "uniform",
    ):
        super().__init__(task)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"--label-smoothing must lie in [0, 1), got {label_smoothing}")
        if label_smoothing_prior != "uniform" and label_smoothing == 0:
            raise ValueError(
                f"--label-smoothing-prior {label_smoothing_prior} has no effect without "
                "--label-smoothing"
            )
        self.label_smoothing = label_smoothing
        self.label_smoothing_prior = label_smoothing_prior
        self._unigrams: Optional[Tensor] = None
        self.fused_loss = not no_fused_loss
        self.epsilon = getattr(task, "perplexity_epsilon", None)
        self.sentence_avg = sentence_avg

    @classmethod
    def build_criterion(cls, cfg, task):
        """Same as in fairseq, except that it first refuses a model whose settings do not fit.

        Raises:
            ValueError: naming the architecture or the transform, and the one to use.
        """
        run = cfg._get_parent() if OmegaConf.is_config(cfg) else None
        has_model = run is not None and "model" in run
        if has_model:
            check_settings_of_model(cls.name, run["model"])
        criterion = super().build_criterion(cfg, task)
        if has_model and not getattr(task, "checks_first_checkpoint", False):
            criterion.run = run
        return criterion

    def train(self, mode: bool = True):
        """Same as in PyTorch, but the first call by fairseq-train checks the run that it resumes:
        this call comes before the first update, after the checkpoint has been loaded.

        Raises:
            ValueError: the run would resume one with another output transform or attention.
        """
        if mode and self.run is not None:
            run, self.run = self.run, None
            compatibility.check_resumed_run(run)
        return super().train(mode)

    def forward(self, model, sample: dict[str, Any], reduce: bool = True):
        """Return the loss of a batch, its sample size and the logging output, as in fairseq."""
        loss, statistics = model(
            **sample["net_input"],
            loss=OutputLoss(
                model.get_targets(sample, None),
                self.padding_idx,
                self.label_smoothing,
                self._prior(sample["target"].device),
                "sum" if reduce else "none",
                self.fused_loss,
                self.epsilon,
            ),
        )
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            **{f"statistics_{name}": value for name, value in statistics.items()},
        }
        return loss, sample_size, logging_output

    def _prior(self, device: torch.device) -> Optional[Tensor]:
        """Return the distribution of label smoothing, None if it is uniform."""
        if self.label_smoothing_prior == "uniform":
            return None
        if self._unigrams is None:  # not before, because the task loads its data last
            self._unigrams = unigram_distribution(self.task)
        self._unigrams = self._unigrams.to(device)
        return self._unigrams

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the means over the batches and workers."""

        def total(name: str):
            return sum(log.get(name, 0) for log in logging_outputs)

        ntokens = total("ntokens")
        metrics.log_scalar("loss", total("loss") / ntokens, ntokens, round=4)
        for name, source, of, factor, digits in (
            ("sentence_accuracy", "correct_sentences", "statistics_sentences", 100, 2),
            ("accuracy", "correct", "statistics_tokens", 100, 2),
            ("nonzeros", "nonzeros", "statistics_tokens", 1, 2),
            ("gold_zero", "gold_zero", "statistics_tokens", 100, 2),
            ("prob_sum", "prob_sum", "statistics_tokens", 1, 4),
            ("tau", "tau", "statistics_tokens", 1, 4),
            ("logit_norm", "logit_norm", "statistics_tokens", 1, 2),
            ("sparsemax_score", "sparsemax_score", "statistics_tokens", 1, 4),
            ("js_divergence", "js_divergence", "statistics_tokens", 1, 4),
            # Not logged, because of the underscore; perplexities are computed from their means.
            ("_eps_nll", "eps_nll", "statistics_tokens", 1, None),
            ("_nll", "nll", "statistics_tokens", 1, None),
        ):
            count = total(of)
            if count > 0 and any(f"statistics_{source}" in log for log in logging_outputs):
                mean = factor * total(f"statistics_{source}") / count
                metrics.log_scalar(name, mean, count, round=digits)
                if name.endswith("_nll"):
                    perplexity = name.removeprefix("_").removesuffix("nll") + "ppl"
                    metrics.log_derived(perplexity, partial(_perplexity, name))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def unigram_distribution(task) -> Tensor:
    """Return the relative frequency of each token in the training set's targets, ``[V]`` in fp32.

    The counts in the dictionary would not do: a shared one counts the source text, too.

    Raises:
        ValueError: the training set is not there, or in several folders, of which fairseq loads one
            an epoch.
    """
    settings = task.args if task.cfg is None else task.cfg  # None in language_modeling
    if len(utils.split_paths(settings.data)) > 1:
        raise ValueError(
            "--label-smoothing-prior unigram counts the whole training set, but DATA names several "
            f"folders, {settings.data}: put the data into one, or take the uniform prior"
        )
    subset = getattr(settings, "train_subset", "train")  # language models have no such field
    if subset not in task.datasets:
        try:
            task.load_dataset(subset, combine=True)  # all its parts, as fairseq-train does
        except FileNotFoundError as error:
            raise ValueError(
                f"--label-smoothing-prior unigram counts the training set, but {error}"
            ) from error
    data = task.dataset(subset)
    counts = torch.zeros(len(task.target_dictionary), dtype=torch.int64)
    for start in range(0, len(data), _COUNTED_AT_ONCE):
        stop = min(start + _COUNTED_AT_ONCE, len(data))
        tokens = torch.cat([data[index]["target"] for index in range(start, stop)])
        counts += torch.bincount(tokens, minlength=len(counts))
    return (counts / counts.sum()).float()


def _perplexity(name: str, meters: Mapping[str, AverageMeter]) -> float:
    return get_perplexity(meters[name].avg, base=math.e)


# fairseq does not tell a criterion under which name it was requested, so each name has a class.


@register_criterion("entmax_loss", dataclass=SparseCriterionConfig)
class EntmaxLossCriterion(SparseCriterion):
    """The alpha-entmax loss; for a softmax output (alpha = 1) it is cross-entropy."""

    name = "entmax_loss"


@register_criterion("alpha_relu_loss", dataclass=SparseCriterionConfig)
class AlphaReLULossCriterion(SparseCriterion):
    """The alpha-ReLU loss."""

    name = "alpha_relu_loss"

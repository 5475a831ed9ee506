"""``--task translation_sparse``: translation with a search that is safe for exact zeros."""

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.logging.meters import AverageMeter
from fairseq.tasks import register_task
from fairseq.tasks.translation import EVAL_BLEU_ORDER, TranslationConfig, TranslationTask

from fairseq_sparse.checkpoints import compatibility
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator
from fairseq_sparse.generation.sparse_sequence_generator import SparseSequenceGenerator
from fairseq_sparse.tasks.sparse_decoding import SparseDecodingConfig, SparseDecodingMixin
from fairseq_sparse.tasks.sparse_training import SparseTrainingMixin


@dataclass
class TranslationSparseConfig(SparseDecodingConfig, TranslationConfig):
    pass


@register_task("translation_sparse", dataclass=TranslationSparseConfig)
class TranslationSparseTask(SparseDecodingMixin, SparseTrainingMixin, TranslationTask):
    """fairseq's ``translation``, whose decoding also works for models with sparse outputs.

    Training and data are those of ``translation``, with what :class:`SparseTrainingMixin` adds;
    decoding is that of :class:`SparseDecodingMixin`. Under ``--eval-bleu`` the validation log has
    the number of ``incomplete`` translations.
    """

    validated_model = None

    def build_model(self, cfg, from_checkpoint: bool = False):
        """Same as in fairseq, with the checks of :class:`SparseTrainingMixin`.

        Raises:
            ValueError: BLEU is to choose the best checkpoint, but is not computed; or the search
                report of validation would not be that of one data set.
        """
        if self.cfg.eval_bleu and not from_checkpoint:
            self._check_report(compatibility.run_settings(cfg, "dataset"))
        model = super().build_model(cfg, from_checkpoint)
        metric = self.checkpoint_settings.best_checkpoint_metric
        if metric == "bleu" and not self.cfg.eval_bleu:
            raise ValueError("--best-checkpoint-metric bleu: give --eval-bleu as well")
        return model

    def build_criterion(self, cfg, *args, **kwargs):
        """Same as in fairseq. The run's checkpoints will not name its search report: whoever loads
        one, to validate or to translate, would overwrite it."""
        criterion = super().build_criterion(cfg, *args, **kwargs)
        compatibility.run_settings(cfg, "task").search_report = None
        return criterion

    def _check_report(self, dataset) -> None:
        """Refuse a search report that several workers or several validation sets would share.

        Raises:
            ValueError: naming the flag and the remedy.
        """
        if "search_report" in json.loads(self.cfg.eval_bleu_args):
            raise ValueError("--eval-bleu-args: give search_report as the flag --search-report")
        if not self.cfg.search_report:
            return
        workers = distributed_utils.get_global_world_size()
        if workers > 1:
            raise ValueError(
                f"--search-report: each of the {workers} workers would overwrite it; leave it out, "
                "and write it with fairseq-generate"
            )
        subsets = getattr(dataset, "valid_subset", "valid")
        if "," in subsets:
            raise ValueError(
                f"--search-report: the sentences of --valid-subset {subsets} would have the same "
                "numbers; leave it out, and write one for each with fairseq-generate"
            )

    def begin_valid_epoch(self, epoch, model) -> None:
        """Let a search report have the translations of the last validation alone."""
        super().begin_valid_epoch(epoch, model)
        self.report.begin_anew()

    def valid_step(self, sample, model, criterion, ema_model=None):
        """Same as in fairseq; ``--eval-bleu`` decodes with the model that is validated."""
        if ema_model is not None:
            self._decode_with(ema_model)
        self.report.reset()
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, ema_model)
        ours = (SparseSequenceGenerator, ExactSequenceGenerator)
        if isinstance(getattr(self, "sequence_generator", None), ours):
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

        def total(name: str) -> int:
            return int(sum(log.get(name, 0) for log in logging_outputs))

        if any("_incomplete" in log for log in logging_outputs):
            metrics.log_scalar_sum("incomplete", total("_incomplete"), round=0)
        if any("_bleu_sys_len" in log for log in logging_outputs) and total("_bleu_sys_len") == 0:
            # fairseq leaves out a batch whose outputs are all empty, and its references with it.
            for name in ("_bleu_counts", "_bleu_totals"):
                metrics.log_scalar(name, np.zeros(EVAL_BLEU_ORDER, dtype=int))
            metrics.log_scalar("_bleu_sys_len", 0)
            metrics.log_scalar("_bleu_ref_len", total("_bleu_ref_len"))
            metrics.log_derived("bleu", _bleu)


def _bleu(meters: Mapping[str, AverageMeter]) -> float:
    """Compute BLEU from the sums over all batches, as fairseq does."""
    from sacrebleu.metrics import BLEU  # on use, as in fairseq: it is slow to import

    counts, totals, *lengths = (
        meters[f"_bleu_{name}"].sum for name in ("counts", "totals", "sys_len", "ref_len")
    )
    bleu = BLEU.compute_bleu(counts, totals, *map(int, lengths), smooth_method="exp")
    return round(bleu.score, 2)

"""``--task translation_sparse``: translation with a search that is safe for exact zeros."""

import json
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

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

    def valid_step(self, sample, model, criterion, ema_model=None):
        """Same as in fairseq; ``--eval-bleu`` decodes with the model that is validated."""
        if ema_model is not None:
            self._decode_with(ema_model)
        self.report.reset()
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, ema_model)
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

"""``--task translation_sparse``: translation with a search that is safe for exact zeros."""

import logging
from typing import Any

from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_sparse.generation import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
    is_sparse_model,
)
from fairseq_sparse.modules.sparse_attention import has_sparse_attention

logger = logging.getLogger(__name__)


@register_task("translation_sparse", dataclass=TranslationConfig)
class TranslationSparseTask(TranslationTask):
    """Stock ``translation``, whose decoding also works for models with sparse outputs.

    Training, data and flags are those of ``translation``. ``fairseq-generate``,
    ``fairseq-interactive`` and ``--eval-bleu`` decode with :class:`SparseSequenceGenerator` as soon
    as one model of the ensemble is sparse, and with fairseq's own generator otherwise. Under
    ``--print-alignment``, a target token that attends to no source token is linked to nothing.

    Sentences without a complete translation are counted: in a warning after the last batch of
    ``fairseq-generate`` (of each input buffer of ``fairseq-interactive``), and as ``incomplete``
    in the validation log under ``--eval-bleu``.
    """

    supports_sparse_outputs = True

    def __init__(self, cfg: TranslationConfig, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        self.batches = None
        self.decoded = 0
        self.incomplete = 0

    def build_generator(
        self,
        models,
        args,
        seq_gen_cls=None,
        extra_gen_cls_kwargs=None,
        prefix_allowed_tokens_fn=None,
    ):
        """Build the generator that *args* asks for; sparse-aware where a model needs it."""
        extra = dict(extra_gen_cls_kwargs or {})
        sparse = any(is_sparse_model(model) for model in [*models, extra.get("lm_model")])
        align = getattr(args, "print_alignment", False)
        if seq_gen_cls is None and align and (sparse or any(map(has_sparse_attention, models))):
            seq_gen_cls = SparseSequenceGeneratorWithAlignment
            extra["print_alignment"] = align
        elif seq_gen_cls is None and sparse:
            seq_gen_cls = SparseSequenceGenerator
        return super().build_generator(models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn)

    def get_batch_iterator(self, dataset, *args, **kwargs):
        """Batches of a data set; but for the training set, no sentence is left out.

        fairseq-fixed drops a last batch whose size is no multiple of
        ``--required-batch-size-multiple`` (8): 30 test sentences would become 24 translations.
        """
        if dataset is not self.datasets.get(self.cfg.train_subset):
            kwargs["required_batch_size_multiple"] = 1
        # fairseq-generate tells a task when it asks for batches, but not when it is done with them.
        self.batches = super().get_batch_iterator(dataset, *args, **kwargs)
        return self.batches

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Decode a batch, and after the last one warn about sentences without a translation."""
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        self.decoded += len(hypotheses)
        self.incomplete += sum(hypos[0].get("incomplete", False) for hypos in hypotheses)
        validating = generator is getattr(self, "sequence_generator", None)
        more = self.batches is not None and self.batches.iterations_in_epoch < len(self.batches)
        if not validating and not more:
            self._warn_of_incomplete()
        return hypotheses

    def _warn_of_incomplete(self) -> None:
        if self.incomplete > 0:
            logger.warning(
                f"{self.incomplete} of {self.decoded} sentences had no complete translation of "
                "non-zero probability within the length limits (--min-len, --max-len-a, "
                "--max-len-b); their best prefix is given instead. A larger --beam may find one."
            )
        self.decoded = self.incomplete = 0

    def valid_step(self, sample, model, criterion):
        self.decoded = self.incomplete = 0
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if isinstance(getattr(self, "sequence_generator", None), SparseSequenceGenerator):
            logging_output["_incomplete"] = self.incomplete
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if any("_incomplete" in log for log in logging_outputs):
            total = sum(log.get("_incomplete", 0) for log in logging_outputs)
            metrics.log_scalar_sum("incomplete", total, round=0)

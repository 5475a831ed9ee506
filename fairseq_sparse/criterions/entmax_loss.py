"""Criterion for sparsemax, 1.5-entmax and alpha-entmax outputs."""

from fairseq.criterions import register_criterion

from fairseq_sparse.criterions.sparse_criterion import SparseCriterion, SparseCriterionConfig


@register_criterion("entmax_loss", dataclass=SparseCriterionConfig)
class EntmaxLossCriterion(SparseCriterion):
    """The alpha-entmax loss; for a softmax output (alpha = 1) it is cross-entropy."""

    name = "entmax_loss"
    output_transforms = ("softmax", "sparsemax", "entmax15", "entmax")

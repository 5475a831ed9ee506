"""Criterion for alpha-ReLU outputs."""

from fairseq.criterions import register_criterion

from fairseq_sparse.criterions.sparse_criterion import SparseCriterion, SparseCriterionConfig


@register_criterion("alpha_relu_loss", dataclass=SparseCriterionConfig)
class AlphaReLULossCriterion(SparseCriterion):
    """The alpha-ReLU loss."""

    name = "alpha_relu_loss"
    output_transforms = ("alpha_relu",)

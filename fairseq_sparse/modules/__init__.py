"""Layers on top of the ops, and mixins that give fairseq's models sparse outputs and attention.

The output projection, its transforms and the kinds of attention also work without fairseq.
"""

from importlib.util import find_spec

from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS, AttentionKind
from fairseq_sparse.modules.output_projection import OutputLoss, OutputProjection
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS, OutputTransform

__all__ = [
    "ATTENTION_KINDS",
    "OUTPUT_TRANSFORMS",
    "AttentionKind",
    "OutputLoss",
    "OutputProjection",
    "OutputTransform",
]

if find_spec("fairseq") is not None:
    import fairseq  # noqa: F401  # registers all of fairseq_sparse, in the right order

    from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention
    from fairseq_sparse.modules.sparse_output import SparseOutputDecoder, SparseOutputModel

    __all__ += ["SparseMultiheadAttention", "SparseOutputDecoder", "SparseOutputModel"]

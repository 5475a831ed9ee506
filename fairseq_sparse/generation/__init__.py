"""Decoding for models whose probabilities can be exactly zero."""

import fairseq  # noqa: F401  # registers all of fairseq_sparse, in the right order

from fairseq_sparse.generation.alignment import SparseSequenceScorer
from fairseq_sparse.generation.normalized_scores import (
    NormalizedScores,
    is_sparse_model,
    scores_are_log_probs,
    with_distributions,
)
from fairseq_sparse.generation.sparse_search import SparseSearch
from fairseq_sparse.generation.sparse_sequence_generator import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
)

__all__ = [
    "NormalizedScores",
    "SparseSearch",
    "SparseSequenceGenerator",
    "SparseSequenceGeneratorWithAlignment",
    "SparseSequenceScorer",
    "is_sparse_model",
    "scores_are_log_probs",
    "with_distributions",
]

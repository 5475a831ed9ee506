"""Decoding for models whose probabilities can be exactly zero."""

from fairseq_sparse.generation.sparse_search import SparseSearch
from fairseq_sparse.generation.sparse_sequence_generator import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
    is_sparse_model,
)

__all__ = [
    "SparseSearch",
    "SparseSequenceGenerator",
    "SparseSequenceGeneratorWithAlignment",
    "is_sparse_model",
]

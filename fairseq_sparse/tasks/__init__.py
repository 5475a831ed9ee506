"""Tasks that decode sparse models."""

import fairseq  # noqa: F401  # registers all of fairseq_sparse, in the right order

from fairseq_sparse.tasks.language_modeling_sparse import (
    LanguageModelingSparseConfig,
    LanguageModelingSparseTask,
)
from fairseq_sparse.tasks.sparse_decoding import SparseDecodingConfig, SparseDecodingMixin
from fairseq_sparse.tasks.sparse_training import SparseTrainingMixin
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig, TranslationSparseTask

__all__ = [
    "LanguageModelingSparseConfig",
    "LanguageModelingSparseTask",
    "SparseDecodingConfig",
    "SparseDecodingMixin",
    "SparseTrainingMixin",
    "TranslationSparseConfig",
    "TranslationSparseTask",
]

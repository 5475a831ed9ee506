"""Tasks that decode sparse models."""

from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig, TranslationSparseTask

__all__ = ["TranslationSparseConfig", "TranslationSparseTask"]

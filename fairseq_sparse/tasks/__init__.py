"""Tasks that decode sparse models."""

from fairseq_sparse.tasks.translation_sparse import TranslationSparseTask

__all__ = ["TranslationSparseTask"]

"""Sparse outputs and attention for fairseq: models, criterions and tasks, registered on import.

``fairseq_sparse.ops`` needs only torch and numpy, and loads nothing else.
"""

from fairseq_sparse.registration import register_with_fairseq

__version__ = "0.1.0"

register_with_fairseq()

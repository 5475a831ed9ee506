"""Sparse outputs and attention for fairseq: models, criterions, tasks. Importing registers them.

``fairseq_sparse.ops`` needs torch and numpy alone; without fairseq nothing is registered.
"""

from importlib.util import find_spec

__version__ = "0.1.0"

if find_spec("fairseq") is not None:
    from fairseq_sparse.checkpoint_safety import allow_fairseq_checkpoints
    from fairseq_sparse.criterions import alpha_relu_loss, entmax_loss  # noqa: F401
    from fairseq_sparse.models import (  # noqa: F401
        lstm_sparse,
        transformer_lm_sparse,
        transformer_sparse,
    )
    from fairseq_sparse.optim import reduce_lr_on_valid_loss  # noqa: F401
    from fairseq_sparse.tasks import translation_sparse  # noqa: F401

    allow_fairseq_checkpoints()

"""Sparse outputs and attention for fairseq: models, criterions and tasks, registered on import.

``fairseq_sparse.ops`` needs only torch and numpy, and loads nothing else.
"""

if __name__ != "fairseq_sparse":
    # fairseq imports the folder of --user-dir by its name, and everything would register twice.
    import os

    raise ImportError(
        f"--user-dir must be a folder with the name fairseq_sparse, not {__name__}: "
        f"use {os.path.realpath(__path__[0])}"
    )

from fairseq_sparse.registration import register_with_fairseq

__version__ = "0.1.0"

register_with_fairseq()

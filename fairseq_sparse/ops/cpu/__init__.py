"""The kernels for CPUs, in C: rows of logits, sparse products, attention and dropout.

They are compiled at their first use (``build.py``), and nothing reaches them but through one
checked boundary (``boundary.py``). They compute in fp32. Each states beside itself when it applies.
"""

from fairseq_sparse.ops.cpu import attention, dropout, linear_loss, rows

__all__ = ["attention", "dropout", "linear_loss", "rows"]

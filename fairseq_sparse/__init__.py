"""Sparse output layers for fairseq."""

__version__ = "0.1.0"

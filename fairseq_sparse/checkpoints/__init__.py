"""Checkpoints: safe loading, averaging, recovery, export, and whether they fit a model."""

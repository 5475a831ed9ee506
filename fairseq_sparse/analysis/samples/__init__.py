"""Samples of models: minimum Bayes risk decoding, and the repetition and diversity of samples."""

"""Samples of models: minimum Bayes risk decoding, and how much samples repeat and vary."""

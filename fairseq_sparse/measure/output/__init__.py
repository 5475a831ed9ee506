"""Supports, zeros and possible translations of models with sparse outputs."""

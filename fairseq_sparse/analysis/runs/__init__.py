"""Trained runs: their logs and summaries, and the tables and curves made from them."""

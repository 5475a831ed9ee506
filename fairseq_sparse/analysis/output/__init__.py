"""The output distributions of models: support, statistics, and pictures of them."""

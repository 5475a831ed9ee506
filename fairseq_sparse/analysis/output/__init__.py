"""What the output layer of a model does: its support, its statistics, and pictures of them."""

"""Statistics of trained models over a data set, and the reports on them."""

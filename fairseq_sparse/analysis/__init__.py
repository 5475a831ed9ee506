"""What trained models do: statistics over a data set, and how they are reported."""

"""What can be measured of translations and samples without their model."""

# Random exchanges in a paired test.
TRIALS = 10_000

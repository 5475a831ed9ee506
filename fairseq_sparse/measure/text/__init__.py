"""What can be measured of translations and samples without their model."""

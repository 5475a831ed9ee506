"""Pictures of measurements, in matplotlib; nothing here loads a model."""

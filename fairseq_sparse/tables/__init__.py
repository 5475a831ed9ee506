"""Tables of measurements, beside the figures of the papers; nothing here loads a model."""

"""JSON in a model's output, with repairs."""

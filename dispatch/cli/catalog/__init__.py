"""The catalogue of the command line: the given sources, what they deliver, and items that are written."""

"""Learning the scores of a toolkit's edges from use."""

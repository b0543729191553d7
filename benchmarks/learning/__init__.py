"""Evaluation of learned scores."""

"""Functions that several methods share."""

"""Metrics, uncertainty and paired differences of results."""

"""Summaries that clients report for a diagnosis: queries, counts and moments, noise, predictions and projections."""

"""Holds the callbacks around the rounds of a run, one class for each concern."""

"""Holds the comparison of runs: tuning, paired differences, ensembles, and the record in MLflow."""

"""Candidates of comparisons in MLflow's registry, and which of them is the champion."""

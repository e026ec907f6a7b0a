"""MLflow, which is known here only."""

"""Write checkpoints, files and figures, and log to MLflow."""

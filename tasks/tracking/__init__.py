"""What is written down: checkpoints, files, figures, and what MLflow is told."""

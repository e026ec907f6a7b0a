"""Log to MLflow; no other package imports MLflow."""

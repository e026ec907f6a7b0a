"""A run and what is around it: its project, its problem, its folder, what MLflow is told of it."""

"""Holds one run: its context, its folder, its records, its description for MLflow, and how it is loaded again."""

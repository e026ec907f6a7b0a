"""Verbs that answer at once and are no Prefect flows: they train nothing and leave no run."""

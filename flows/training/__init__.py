"""One run of a method in a project: rounds, evaluation, and the run's folder."""

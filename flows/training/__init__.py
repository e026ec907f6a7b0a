"""A project and one run of a method in it: data, setup, rounds, evaluation, and the run's folder."""

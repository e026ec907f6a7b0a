"""A run's mean and scale of inputs and targets, and what is said where they are missing."""

"""What a model does on rows, as counts and sums: scores, and the difference between two runs."""

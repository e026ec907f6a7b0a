"""Statistics of the distribution of a client's rows."""

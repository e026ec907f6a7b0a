"""The ledgers of what clients reported of their rows, across runs, and when they refuse to report."""

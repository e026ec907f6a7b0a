"""The parts of `siloflow diagnose`: queries, and results as plain JSON."""

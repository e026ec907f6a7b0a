"""Draw pairs of clients with a known shift, and judge them by verdicts."""

"""Several runs: compared, tuned, and raced against each other for advice."""

"""`siloflow bench`: workloads, what they are measured against, and tuning."""

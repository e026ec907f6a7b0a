"""One mean and scale for each feature: what clients tell for it, and what the server makes of it."""

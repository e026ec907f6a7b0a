"""How steps are made, and where they run."""

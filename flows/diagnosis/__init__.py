"""What `siloflow diagnose` is made of: the question, and what came out as plain JSON."""

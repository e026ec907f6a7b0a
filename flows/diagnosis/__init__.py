"""What `siloflow diagnose` is made of: the question, what came out as plain JSON, and the words for it."""

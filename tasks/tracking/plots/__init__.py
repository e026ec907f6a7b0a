"""Pictures, a topic a file, in one style."""

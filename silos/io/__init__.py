"""What the machine gives, and may take away at any moment: files, memory, and others at the same data."""

"""Draw figures in one style, one topic per file."""

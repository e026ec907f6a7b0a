"""Find, list, compare and clean what earlier commands left in a project's folder."""

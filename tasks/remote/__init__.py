"""Run client steps at the places where rows lie: no row and no code travels."""

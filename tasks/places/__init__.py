"""Steps at places: the rows stay there, and no code comes in."""

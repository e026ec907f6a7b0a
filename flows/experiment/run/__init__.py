"""One run: its folder, what is written there and when it counts, what the outside sees of it, and how it is opened again."""

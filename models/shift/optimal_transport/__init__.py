"""How far clients are apart, as optimal transport has it: a second opinion."""

"""What earlier commands left in a project's folder: found by name, listed, held beside each other, thrown away."""

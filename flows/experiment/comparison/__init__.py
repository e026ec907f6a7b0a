"""What several runs say together: how they differ, row by row, and how they answer as one ensemble."""

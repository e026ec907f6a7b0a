"""The kinds of shift between two clients, from counts and moments that they report."""

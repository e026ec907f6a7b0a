"""The versions of data/; DVC is used here only."""

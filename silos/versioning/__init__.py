"""The versions of data/; DVC is known here only."""

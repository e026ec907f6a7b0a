"""Pairs of clients whose shift is known, for tables of how often it is named."""

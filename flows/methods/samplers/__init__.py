"""Whom a round calls on, and what the loop remembers for it."""

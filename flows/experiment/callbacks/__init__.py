"""Callbacks: what surrounds the rounds of a run, one class a concern, in one list whose order is a promise."""

"""Published tables as data, the sweeps that fill them, their records, and the tables of docs/ that are written from them.

A part of a checkout, not of an installed siloflow.
"""

"""Measure siloflow against reference loops and peer frameworks.

A part of a checkout, not of an installed siloflow.
"""

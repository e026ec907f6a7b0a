"""Workloads, reference loops and peer frameworks that `siloflow bench` measures against.

A part of a checkout, not of an installed siloflow.
"""

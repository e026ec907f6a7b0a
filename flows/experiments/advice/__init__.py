"""The race between methods on a project's silos, the proof of its winner on fresh seeds, and the advice."""

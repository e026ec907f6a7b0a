"""Candidates of comparisons in MLflow's registry, and which of them is the champion."""

from pathlib import Path

FOLDER = Path("runs") / "registry"
JOURNAL = FOLDER / "journal.json"
"""The transaction that is under way; a command that finds one completes it."""

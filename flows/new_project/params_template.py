"""The params.yaml that siloflow comes with: what a new project starts from, and what published tables are repeated over."""

import json
from pathlib import Path

from silos import strict_yaml

HOME = Path(__file__).parent  # that file is called params.yaml, and is the one of siloflow's checkout

_OF_AN_EXPERIMENT = ("data", "model", "training", "clients", "evaluation", "method")


def text() -> str:
    """The file as it is written, with its comments."""
    return (HOME / "params.yaml").read_text(encoding="utf-8")


def of_an_experiment() -> list[str]:
    """What decides a result, each section as one override: over another params.yaml only the machine is that one's."""
    held = strict_yaml.load(text())
    return [f"{section}={json.dumps(held[section])}" for section in _OF_AN_EXPERIMENT]

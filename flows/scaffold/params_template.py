"""The params.yaml that siloflow comes with: what a new project starts from, and what published tables are repeated over."""

import json
import re
from pathlib import Path

from silos import strict_yaml

HOME = Path(__file__).parent  # that file is called params.yaml, and is the one of siloflow's checkout

_OF_AN_EXPERIMENT = ("data", "model", "training", "clients", "evaluation", "method")


def text() -> str:
    """The file as it is written, with its comments."""
    return (HOME / "params.yaml").read_text(encoding="utf-8")


def deployments() -> str:
    """The prefect.yaml that deploys the verbs, with its comments."""
    return pointed((HOME / "prefect.yaml").read_text(encoding="utf-8"))


def pointed(text: str) -> str:
    """The text for a folder without docs/: its comments name commands, and say once where other pages are."""
    text = re.sub(r"docs/methods/(\w+)\.md", r"siloflow methods \1", text)
    for page, command in _COMMANDS.items():
        text = text.replace(f"docs/{page}.md", f"siloflow {command} --help")
    return re.sub(r"\A(#.*\n)", rf"\1{_PAGES}\n", text) if "docs/" in text else text


_COMMANDS = {"diagnose": "diagnose", "read-a-result": "compare", "statistics": "stats"}
_PAGES = "# docs/ is a folder of siloflow's source; `siloflow methods NAME` and `siloflow COMMAND --help` need no page."


def of_an_experiment() -> list[str]:
    """What decides a result, each section as one override: over another params.yaml only the machine is that one's."""
    held = strict_yaml.load(text())
    return [f"{section}={json.dumps(held[section])}" for section in _OF_AN_EXPERIMENT]

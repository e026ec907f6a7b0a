"""Silos of settings' making, diagnosed as `siloflow diagnose` does it: what is said of pairs whose shift is known."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flows.diagnose import examined
from flows.experiment.project import Project, scratch_dir
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner


def said_of_silos(root: Path, settings: Sequence[str], across: bool) -> list[dict[str, str]]:
    """Of each pair of silos of different domains, or of the same one: verdict to types, joined, `none` or `undetermined`."""
    return [said for differ, said in _diagnosed(root, tuple(settings)) if differ is across]


@lru_cache(maxsize=8)
def _diagnosed(root: Path, settings: tuple[str, ...]) -> list[tuple[bool, dict[str, str]]]:
    """Of every pair whether its silos are of different domains, and what is said; once for cells that share their silos.

    UserError where there are so many silos that groups of them are compared.
    """
    with scratch_dir(root / "cache" / "diagnosed") as scratch:
        project = replace(Project.open_shared(settings, root, derived=True), scratch=scratch)
        _, answer = examined(project, PlainRunner())
    if answer["pairs_of"] == "groups":
        raise UserError(f"{len(answer['clients'])} silos are compared as groups, and not in pairs; make fewer silos.")
    domains = {client.name: client.domain for client in project.manifest.clients}
    return [
        (domains[pair["first"]] != domains[pair["second"]], {answer["verdict"]: _named(pair)})
        for pair in answer["pairs"]
    ]


def _named(pair: dict[str, Any]) -> str:
    return "+".join(pair["types"]) or ("undetermined" if pair["undetermined"] else "none")

"""The command that `siloflow compare` ends in can be typed, and does what the line says."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement

from flows import cli
from flows.cli.command_lifecycle import _OF_COORDINATOR, _not_installed
from flows.cli.training_commands import _next_command, _registry_lines


def ended(challenger: str, champion: str | None = None, better: bool = False) -> dict[str, Any]:
    """A comparison that registered ifca as version 7."""
    candidate = {"method": "ifca", "run": "ifca-seed0", "version": "7", "better": better}
    registry = {"model": "m", "champion": champion, "challenger": challenger, "candidates": [candidate]}
    return {"paired": [], "registry": registry}


@pytest.mark.parametrize("comparison", [ended("7"), ended("3"), ended("7", "1", better=True), {"paired": []}])
def test_every_next_command_has_what_it_requires(comparison: dict[str, Any]) -> None:
    group = typer.main.get_command(cli.app)
    for line in _next_command(comparison).split(", then "):
        _, name, *arguments = line.split()
        command = group.get_command(typer.Context(group), name)
        command.make_context(name, arguments)


def test_a_first_champion_is_no_next_step_where_no_method_is_better_than_a_constant_answer() -> None:
    useless = {"baseline": {"sentence": 'No method is certainly better than always predicting "yes".', "paired": []}}
    assert _next_command(ended("7") | useless) == "siloflow advise"
    assert _next_command(ended("7") | {"baseline": {"sentence": "", "paired": []}}).startswith("siloflow promote, ")
    assert _next_command(ended("7", "1", better=True) | useless).startswith("siloflow promote, ")


def test_of_an_earlier_challenger_the_line_does_not_say_that_promote_takes_it() -> None:
    assert _next_command(ended("3")) == "siloflow advise"
    assert _registry_lines(ended("3"), ended("3")["registry"])[1] == (
        "champion      none yet: `siloflow promote` judges an earlier candidate with a better score (version 3) by the "
        "comparison that it comes from"
    )
    assert _next_command(ended("7")).startswith("siloflow promote, ")
    assert _registry_lines(ended("7"), ended("7")["registry"])[1].endswith(
        "`siloflow promote` would make ifca-seed0 (version 7) the first"
    )


def test_each_module_of_the_coordinators_extra_is_named_with_the_command_that_installs_it() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["coordinator"]
    assert {Requirement(line).name for line in extra} == {*_OF_COORDINATOR}
    for name in _OF_COORDINATOR:
        said = _not_installed(ModuleNotFoundError(name=f"{name}.part")) or ""
        assert said.startswith(f"{name} is not installed")
        assert "'.[coordinator]'" in said


def test_docs_and_the_sentence_list_the_same_commands_of_a_place() -> None:
    said = _not_installed(ModuleNotFoundError(name="mlflow")) or ""
    commands = said.partition(" has ")[2].partition(" only")[0]
    assert commands
    assert f"{commands} work" in (Path(__file__).parents[3] / "docs" / "places.md").read_text(encoding="utf-8")

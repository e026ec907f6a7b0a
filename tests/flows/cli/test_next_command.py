"""The command that `siloflow compare` ends in can be typed, and does what the line says."""

from typing import Any

import pytest
import typer

from flows import cli
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

"""`siloflow methods NAME` says of every option what it takes and means."""

import json
from typing import Annotated, Literal

import pytest
from pydantic import Field

from flows.cli import app
from flows.core.plugin_loader import NONE
from flows.methods import base as pages
from flows.methods.base import Method
from flows.methods.method_settings import method_details, options_of


class Small(Method):
    """Options of every type."""

    share: float = Field(0.5, ge=0, lt=1, description="a share")
    most: int | None = Field(None, ge=1, le=10**9, description="at most")
    size: Annotated[int, Field(ge=1, le=100)] | Literal["auto"] = Field("auto", description="a size")
    kinds: tuple[Literal["a", "b"], ...] = Field(("a",), description="kinds")
    sampled: bool = True

    init = run_round = model = Method.leave  # it is never run


@pytest.mark.parametrize("name", pages.method_names())
def test_every_option_of_every_method_says_in_a_short_line_what_it_means(name: str):
    options = method_details(name, NONE)["options"]
    assert {option["name"] for option in options} == set(pages.find_method(name).model_fields)
    assert [option["name"] for option in options if not 0 < len(option["meaning"]) <= 80] == []
    assert [option["takes"] for option in options if "<" in option["takes"] or "[" in option["takes"]] == []


def test_types_and_bounds_are_words():
    assert {option["name"]: (option["takes"], option["choices"]) for option in options_of(Small)} == {
        "share": ("number, 0 or more and below 1", []),
        "most": ("whole number, 1 or more; or null", []),
        "size": ("whole number, 1 to 100; or auto", ["auto"]),
        "kinds": ("list of a | b", ["a", "b"]),
        "sampled": ("true or false", []),
    }


def test_defaults_are_those_that_a_run_has(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch):
    """UEFL's `words` are 32 in the paper's arm, and 64 in the one that is the default."""
    monkeypatch.chdir(tmp_path)
    app(["methods", "uefl", "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    found = {option["name"]: option["default"] for option in answer["options"]}
    assert found == pages.find_method("uefl")().model_dump(mode="json")
    assert found["words"] == 64


def test_one_method_is_printed_with_its_options_at_eighty_columns(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    app(["methods", "fedprox"], standalone_mode=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "proximal  0.01     mu: how strongly weights are pulled to the server's" in lines
    assert "Set an option with `--set method.fedprox.proximal=VALUE`" in " ".join(lines)


def test_a_method_that_is_not_there_is_answered_with_the_nearest(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        app(["methods", "uelf"], standalone_mode=False)
    assert capsys.readouterr().err == "error: method: got 'uelf', expected a known method. Did you mean uefl?\n"

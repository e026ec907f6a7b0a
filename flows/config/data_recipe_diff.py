"""The settings by which params.yaml describes data that were made with another recipe."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from flows.experiment.comparison.search_space import as_yaml
from silos.data_params import DataParams
from silos.errors import UserError


def settings_between(now: DataParams, then: Mapping[str, Any]) -> dict[str, Any] | None:
    """Key to value of what must change in params.yaml to describe the data that the recipe `then` made.

    Returns:
        Nothing if params.yaml describes them already, None if this siloflow does not know a key of the recipe.
    """
    try:
        params = type(now).model_validate(then)
    except (ValidationError, UserError):
        return None
    return dict(_changed("data", now.in_full(), params.in_full(), params.recipe()))


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """What follows `--set`, an item a setting."""
    return [f"{key}={as_yaml(value)}" for key, value in settings.items()]


def as_lines(settings: Mapping[str, Any]) -> list[str]:
    """As params.yaml has them: a section for each part of a key, and each value on one line."""
    lines: list[str] = []
    before: list[str] = []
    for key, value in settings.items():
        *sections, last = key.split(".")
        same = next((at for at, pair in enumerate(zip(sections, before, strict=False)) if pair[0] != pair[1]), None)
        for depth in range(min(len(sections), len(before)) if same is None else same, len(sections)):
            lines.append(f"{'  ' * depth}{sections[depth]}:")
        lines.append(f"{'  ' * len(sections)}{last}: {as_yaml(value)}")
        before = sections
    return lines


def _changed(key: str, now: Any, then: Any, recipe: Any) -> Iterator[tuple[str, Any]]:
    """The deepest keys that differ; a section of another form is given whole, as the recipe has it."""
    if now == then:
        return
    if isinstance(now, dict) and isinstance(then, dict) and now.keys() == then.keys():
        for name in then:
            inside = recipe.get(name, then[name]) if isinstance(recipe, dict) else then[name]
            yield from _changed(f"{key}.{name}", now[name], then[name], inside)
    else:
        yield key, recipe

"""Finds the settings of params.yaml that describe data made with another recipe, and writes them for the user to paste."""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from flows.core.search_space import as_yaml
from silos.data_params import DataParams
from silos.errors import UserError


def settings_between(now: DataParams, then: Mapping[str, object]) -> dict[str, object] | None:
    """Map the keys of params.yaml that must change to the values that describe the data of another recipe.

    Args:
        now: The section `data` of params.yaml.
        then: The recipe that the data were made with.

    Returns:
        Empty if params.yaml describes the data already; None if this version does not know a key of the recipe.
    """
    try:
        params = type(now).model_validate(then)
    except (ValidationError, UserError):
        return None
    return dict(_changed("data", now.in_full(), params.in_full(), params.recipe()))


def as_overrides(settings: Mapping[str, object]) -> list[str]:
    """Return the arguments of `--set`, one for each setting."""
    return [f"{key}={as_yaml(value)}" for key, value in settings.items()]


def as_lines(settings: Mapping[str, object]) -> list[str]:
    """Return lines for params.yaml: a section for each part of a key, and each value on one line."""
    lines: list[str] = []
    before: list[str] = []
    for key, value in settings.items():
        *sections, last = key.split(".")
        pairs = enumerate(zip(sections, before, strict=False))
        first = next((depth for depth, (new, old) in pairs if new != old), min(len(sections), len(before)))
        for depth in range(first, len(sections)):
            lines.append(f"{'  ' * depth}{sections[depth]}:")
        lines.append(f"{'  ' * len(sections)}{last}: {as_yaml(value)}")
        before = sections
    return lines


def _changed(key: str, now: object, then: object, recipe: object) -> Iterator[tuple[str, object]]:
    """List the deepest keys that differ; a section with other keys is returned completely, as in the recipe."""
    if now == then:
        return
    if isinstance(now, dict) and isinstance(then, dict) and now.keys() == then.keys():
        for name in then:
            inside = recipe.get(name, then[name]) if isinstance(recipe, dict) else then[name]
            yield from _changed(f"{key}.{name}", now[name], then[name], inside)
    else:
        yield key, recipe

"""params.yaml read once and checked at the door, with what `--set` says over it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows import method as methods
from flows.console.complaints import explained, nearest
from flows.experiment import user_method
from flows.experiment.plugin_params import params_type
from flows.params import Params
from silos import strict_yaml
from silos.errors import UserError, shown
from tasks.recording.addresses import has_password


def read(root: Path, overrides: Sequence[str] = ()) -> Params:
    """params.yaml of this folder with `section.key=value` overrides; UserError says what to change.

    What a method's own section holds is the method's matter: `Params.page` looks at it.
    """
    return validate(plain(root, overrides), root)


def plain(root: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of params.yaml with overrides; nothing of them is checked or run."""
    try:
        raw = strict_yaml.load(file_of(root).read_bytes())
    except strict_yaml.NotYamlError as error:
        raise UserError(f"params.yaml is not valid YAML: {error}.") from None
    if not isinstance(raw, dict):
        raise UserError("params.yaml holds no sections; the one that `siloflow init DIR` makes shows them.")
    raw = _without_empty(raw)
    for override in overrides:
        _apply(raw, override)
    return raw


def plugins_of(raw: Mapping[str, Any]) -> list[str]:
    """The plugin files that plain params name; what is no list of text is refused with the rest of the params."""
    files = raw.get("plugins")
    return [file for file in files if isinstance(file, str)] if isinstance(files, list) else []


def file_of(root: Path) -> Path:
    """Return the params.yaml of this folder; UserError if there is none."""
    path = root / "params.yaml"
    if not path.is_file():
        raise UserError(
            f"there is no params.yaml in {root.resolve()}; go to your project's folder; `siloflow init DIR` makes one."
        )
    return path


def validate(raw: dict[str, Any], root: Path) -> Params:
    """Params from plain JSON; UserError names the key, the value and the nearest right one.

    The plugin files that it names, relative to `root`, are run.
    """
    raw = _without_empty(raw)
    for key, value in _leaves(raw):
        if any(has_password(text) for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise UserError(f"params.yaml: {key} holds a password, and would be printed and stored; {_NO_PASSWORD}.")
    plugins = user_method.load(root, plugins_of(raw))
    kind = params_type(plugins)
    try:
        params = kind.model_validate(raw)
    except ValidationError as error:
        raise UserError(explained(error, kind)) from None
    stop_at, objective = params.evaluation.stop_at, params.training.objective.kind
    if stop_at is not None and stop_at > 1 and objective != "squared_error":
        raise UserError(
            f"params.yaml: evaluation.stop_at is {stop_at:g}; it must be at most 1, since it is an accuracy."
        )
    known = methods.names(plugins)
    named = [("method", name) for name in params.method]
    named += [("comparison.methods", name) for name in params.comparison.methods]
    for key, name in [*named, ("comparison.reference", params.comparison.reference)]:
        if name not in known:
            raise UserError(f"params.yaml: {key}: there is no method {name!r}{nearest(name, known)}")
    return params


_NO_PASSWORD = (
    "take it out (MLflow finds it in MLFLOW_TRACKING_URI, or in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """`key: old → new` for every leaf that differs between two JSON trees."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    return [f"{k}: {before.get(k)} → {after.get(k)}" for k in keys]


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys to leaves, as MLflow shows parameters."""
    return dict(_leaves(tree))


def _without_empty(raw: dict[str, Any]) -> dict[str, Any]:
    """A section whose lines are all commented out is none: YAML reads it as null."""
    raw = {section: value for section, value in raw.items() if value is not None}
    if isinstance(raw.get("method"), dict):
        raw["method"] = {name: {} if options is None else options for name, options in raw["method"].items()}
    return raw


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    said = f"--set {shown(override)}"
    *sections, last = [part.strip() for part in key.split(".")]
    if not equals or not all([*sections, last]):
        raise UserError(f"{said}: write it as section.key=value, for example training.rounds=20.")
    try:
        value = strict_yaml.load(text)
    except strict_yaml.NotYamlError as error:
        raise UserError(f"{said}: {shown(repr(text))} is not a YAML value ({error}).") from None
    place: Any = raw
    try:
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else place[_place(section)]
        place[last if isinstance(place, dict) else _place(last)] = value
    except (TypeError, LookupError, AttributeError):
        whole = f"; write it whole: --set {shown(_whole(raw, [*sections, last], text))}" if place is None else ""
        raise UserError(f"{said}: params.yaml has no section {shown(key.rpartition('.')[0])}{whole}.") from None


def _whole(raw: dict[str, Any], keys: list[str], text: str) -> str:
    """The override that gives all of a section that is null."""
    there, place = 0, raw
    while place is not None:
        place, there = place[keys[there]] if isinstance(place, dict) else place[_place(keys[there])], there + 1
    inner = f"{keys[-1]}: {text.strip()}"
    for key in reversed(keys[there:-1]):
        inner = f"{key}: {{{inner}}}"
    return f"{'.'.join(keys[:there])}={{{inner}}}"


def _place(part: str) -> int:
    """A place in a list, counted from 0; LookupError for what is none."""
    if re.fullmatch("[0-9]{1,9}", part) is None:
        raise LookupError
    return int(part)


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(v, dict | list) for v in tree):
        for i, value in enumerate(tree):
            yield from _leaves(value, f"{path}.{i}")
    else:
        yield path, tree

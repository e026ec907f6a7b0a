"""Reads and checks params.yaml once, and applies the overrides of `--set`."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.core.config.params_schema import Params
from flows.core.config.plugin_params import params_type
from flows.core.config.validation_errors import explain_error, nearest_hint
from flows.core.plugin_loader import PluginFiles, user_code_errors
from flows.plugins import METRICS
from models.metrics.client_metrics import METRICS_BY_NAME, ClientMetric, metrics_of_task
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from models.model_card import Task
from silos import strict_yaml
from silos.errors import UserError, shown
from silos.io.addresses import has_password
from silos.plugin_registry import Registered, bind_options
from tasks.tracking.result_types.run_files import PlainParams


@dataclass(frozen=True)
class ParamsFile:
    """The content of params.yaml, with the overrides that were applied to it.

    Attributes:
        raw: Plain values, unchecked.
        root: The project's folder, which the paths of plugin files are relative to.
        plugin_files: The plugin files that were run; shared with all files derived by `with_overrides`.
        overrides: As `section.key=value`, in the order in which they were applied.
    """

    raw: PlainParams = field(repr=False)
    root: Path
    plugin_files: PluginFiles = field(repr=False, compare=False)
    overrides: tuple[str, ...] = ()
    _as_read: "ParamsFile | None" = field(default=None, repr=False)

    @classmethod
    def read(cls, root: Path) -> "ParamsFile":
        """Read params.yaml of this folder; UserError if there is none, or if it is not YAML with sections."""
        try:
            raw = strict_yaml.load(params_file_of(root).read_bytes())
        except strict_yaml.NotYamlError as error:
            raise UserError(f"params.yaml is not valid YAML: {error}.") from None
        if not isinstance(raw, dict):
            raise UserError(
                "params.yaml: got no sections, expected those of the file that `siloflow init DIR` writes. Add them."
            )
        return cls(_without_empty(raw), root, PluginFiles(root))

    def with_overrides(self, overrides: Sequence[str]) -> "ParamsFile":
        """Apply more overrides to a copy; each is parsed only here. UserError for an invalid one."""
        if not overrides:
            return self
        raw = deepcopy(self.raw)
        for override in overrides:
            _apply(raw, override)
        return ParamsFile(raw, self.root, self.plugin_files, (*self.overrides, *overrides), self.as_read)

    @property
    def as_read(self) -> "ParamsFile":
        """Return the file without overrides."""
        return self._as_read or self

    @cached_property
    def params(self) -> Params:
        """Return the typed params, checked at the first use; UserError says what to change.

        Plugin files that params name are run, unless the command has run them. `method_of` checks the sections of
        methods.
        """
        return _validate(self.raw, self.plugin_files)


def load_params(root: Path, overrides: Sequence[str] = ()) -> Params:
    """Read params.yaml of this folder and apply `section.key=value` overrides; UserError says what to change."""
    return ParamsFile.read(root).with_overrides(overrides).params


def plugins_of(raw: Mapping[str, object]) -> list[str]:
    """Return the plugin files that plain params name; invalid entries are reported with the other params."""
    files = raw.get("plugins")
    return [file for file in files if isinstance(file, str)] if isinstance(files, list) else []


def params_file_of(root: Path) -> Path:
    """Return the params.yaml of this folder; UserError if there is none."""
    path = root / "params.yaml"
    if not path.is_file():
        raise UserError(
            f"{root.resolve()}: got no params.yaml, expected a project. Go to your project's folder, or make one "
            "with `siloflow init DIR`."
        )
    return path


def _validate(raw: PlainParams, plugin_files: PluginFiles) -> Params:
    """Check plain params; UserError names the key, the value and the nearest valid one."""
    raw = _without_empty(raw)
    for key, value in _leaves(raw):
        if any(has_password(text) for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise UserError(
                f"params.yaml: {key}: got a password, expected none, since it would be printed and "
                f"stored. {_NO_PASSWORD}."
            )
    schema = params_type(plugin_files.load(plugins_of(raw)))
    try:
        params = schema.model_validate(raw)
    except ValidationError as error:
        raise UserError(explain_error(error, schema)) from None
    stop_at, metric = params.evaluation.stop_at, quantity_of(params)
    if stop_at is not None and metric.higher_is_better and stop_at > metric.bound:
        article = "an" if metric.name[0] in "aeiou" else "a"
        raise UserError(
            f"params.yaml: evaluation.stop_at: got {stop_at:g}, expected at most {metric.bound:g}, since it is "
            f"{article} {metric.name}. Lower it."
        )
    return params


def quantity_of(params: Params) -> TaskMetrics:
    """Return the metric that `evaluation.metric` names, with the further metrics of `evaluation.metrics`.

    Raises:
        UserError: If the task of the objective has no such metric.
    """
    task: Task = "regression" if params.training.objective.kind == "squared_error" else "classification"
    own = {section.kind: metric_plugin(section) for section in params.evaluation.metrics}
    of_clients = {name: metric for name, metric in own.items() if isinstance(metric, ClientMetric)}
    for name, metric in of_clients.items():
        if metric.task != task:
            raise UserError(
                f"params.yaml: evaluation.metrics: got {name}, a metric of a {metric.task}, expected metrics of a {task}. "
                "Remove it."
            )
    known: dict[str, TaskMetrics] = {name: METRICS_BY_NAME[name] for name in metrics_of_task(task)} | of_clients
    name = params.evaluation.metric or TASK_METRICS[task].name
    if name not in known:
        raise UserError(f"params.yaml: evaluation.metric: {_unknown_metric(name, task, list(known), own, params)}")
    rows = [each for each in own if each not in of_clients]
    chosen = known[name].with_metrics(rows, [metric for each, metric in of_clients.items() if each != name])
    return chosen.with_loss("focal loss") if params.training.objective.kind == "focal" else chosen


def metric_plugin(section: Registered) -> ClientMetric | Callable[..., Any]:
    """Return a plugin's metric with its options: a function of rows, or a ClientMetric with the plugin's name.

    Raises:
        UserError: If its class is no ClientMetric, or cannot be hashed.
    """
    target = section.entry.target
    if not isinstance(target, type):
        return bind_options(section)
    label = f"params.yaml: evaluation.metrics: {section.kind}"
    if not issubclass(target, ClientMetric):
        raise UserError(f"{label}: got the class {target.__name__}, expected a function or a class of ClientMetric.")
    if target.__hash__ is None:
        raise UserError(f"{label}: got a class without a hash, expected one. Write @dataclass(frozen=True).")
    with user_code_errors(section.entry.module):
        metric: ClientMetric = bind_options(section)()
    return metric.named(section.kind)


def _unknown_metric(name: str, task: Task, known: list[str], own: Mapping[str, object], params: Params) -> str:
    """Return what is wrong with the name of a metric that the task does not have."""
    choices = f"one of {', '.join(sorted(known))} for a {task}. Choose one of them, or null"
    if name in own:
        return f"got {name}, a function of one row, expected a class of ClientMetric, or {choices}."
    if params.registered.of(METRICS).get(name) is not None:
        return f"got {name}, expected a metric of evaluation.metrics. Add {{kind: {name}}} there."
    if name in METRICS_BY_NAME:
        return f"got {name}, expected {choices}."
    if name in METRICS.built_in:
        return f"got {name}, a measure of one row, expected {choices}."
    return f"got {shown(repr(name))}{nearest_hint(name, known, f', expected {choices}.')}"


_NO_PASSWORD = (
    "Remove it (MLflow reads it from MLFLOW_TRACKING_URI, or from MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD)"
)


def param_differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return `key: old → new` for every leaf that differs between two JSON trees."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    return [f"{k}: {before.get(k)} → {after.get(k)}" for k in keys]


def flatten_params(tree: Mapping[str, object]) -> dict[str, object]:
    """Map dotted keys to leaves, as MLflow shows parameters."""
    return dict(_leaves(tree))


def _without_empty(raw: PlainParams) -> PlainParams:
    """Drop null sections: YAML reads a section whose lines are all commented out as null."""
    raw = {section: value for section, value in raw.items() if value is not None}
    if isinstance(raw.get("method"), dict):
        raw["method"] = {name: {} if options is None else options for name, options in raw["method"].items()}
    return raw


def _apply(raw: PlainParams, override: str) -> None:
    key, equals, text = override.partition("=")
    label = f"--set {shown(override)}"
    *sections, last = [part.strip() for part in key.split(".")]
    if not equals or not all([*sections, last]):
        raise UserError(f"{label}: expected section.key=value. Write it as in training.rounds=20.")
    try:
        value = strict_yaml.load(text)
    except strict_yaml.NotYamlError as error:
        raise UserError(f"{label}: got {shown(repr(text))}, expected a YAML value ({error}). Correct it.") from None
    node: Any = raw
    try:
        for section in sections:
            node = node.setdefault(section, {}) if isinstance(node, dict) else node[_list_index(section)]
        node[last if isinstance(node, dict) else _list_index(last)] = value
    except (TypeError, LookupError, AttributeError):
        keys = [*sections, last]
        hint = f". Set all of it: --set {shown(_complete_override(raw, keys, text))}" if node is None else ""
        raise UserError(
            f"{label}: got no section {shown(key.rpartition('.')[0])} in params.yaml, expected one{hint}."
        ) from None


def _complete_override(raw: PlainParams, keys: list[str], text: str) -> str:
    """Return the override that sets all of a section that is null."""
    depth, node = 0, raw
    while node is not None:
        node, depth = node[keys[depth]] if isinstance(node, dict) else node[_list_index(keys[depth])], depth + 1
    inner = f"{keys[-1]}: {text.strip()}"
    for key in reversed(keys[depth:-1]):
        inner = f"{key}: {{{inner}}}"
    return f"{'.'.join(keys[:depth])}={{{inner}}}"


def _list_index(part: str) -> int:
    """Parse an index of a list, from 0; LookupError if it is none."""
    if re.fullmatch("[0-9]{1,9}", part) is None:
        raise LookupError
    return int(part)


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(v, dict | list) for v in tree):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, tree

"""params.yaml, parsed once and checked at the door; inside, everything is typed."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flows import method as methods
from silos.errors import UserError
from silos.params import DataParams


class Section(BaseModel):
    """A part of params.yaml: no unknown keys, no changes after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MLPParams(Section):
    """Dense layers; no hidden one is logistic regression."""

    kind: Literal["mlp"]
    hidden: list[Annotated[int, Field(ge=1)]] = [64]
    dropout: float = Field(0.0, ge=0, lt=1)


class CrossEntropyParams(Section):
    """-log p."""

    kind: Literal["cross_entropy"]


class FocalParams(Section):
    """-(1 - p)^gamma log p."""

    kind: Literal["focal"]
    gamma: float = Field(2.0, ge=0)


class SGDParams(Section):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    learning_rate: float = Field(gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)


class AdamParams(Section):
    """Adam; `adamw` decouples the weight decay."""

    kind: Literal["adam", "adamw"]
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(0.0, ge=0)


class TrainingParams(Section):
    """One budget for every method of a comparison."""

    rounds: int = Field(ge=1)
    epochs: int = Field(ge=1)
    batch: int = Field(ge=1)
    optimiser: Annotated[SGDParams | AdamParams, Field(discriminator="kind")]
    objective: Annotated[CrossEntropyParams | FocalParams, Field(discriminator="kind")]


class ClientsParams(Section):
    """Who takes part in a round."""

    fraction: float = Field(1.0, gt=0, le=1)
    dropout: float = Field(0.0, ge=0, lt=1)


class EvaluationParams(Section):
    """When models are scored, and which round is reported."""

    every: int = Field(1, ge=1)
    report: Literal["last", "best"] = "last"


class ComparisonParams(Section):
    """What `siloflow compare` does when the command line names nothing."""

    methods: list[str] = Field(min_length=1)
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    reference: str = "fedavg"

    @field_validator("methods", "seeds")
    @classmethod
    def _no_repeats(cls, values: list) -> list:
        if len(set(values)) != len(values):
            raise ValueError("names something twice")
        return values


class EngineParams(Section):
    """How clients are computed; results are the same for any number of workers."""

    kind: Literal["batched", "sequential"] = "batched"
    stack: int = Field(16, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"


class RunnerParams(Section):
    """Where tasks run."""

    workers: int = Field(1, ge=1, le=256)


class TrackingParams(Section):
    """What MLflow is given."""

    uri: str | None = None
    personal_models: bool = False


class Params(Section):
    """The whole file."""

    data: DataParams
    model: Annotated[MLPParams, Field()]
    training: TrainingParams
    clients: ClientsParams = ClientsParams()
    evaluation: EvaluationParams = EvaluationParams()
    comparison: ComparisonParams
    method: dict[str, dict[str, Any]] = {}
    extra_methods: dict[str, str] = {}
    engine: EngineParams = EngineParams()
    runner: RunnerParams = RunnerParams()
    tracking: TrackingParams = TrackingParams()

    def page(self, name: str, root: Path) -> methods.Method:
        """The method with its own section's options."""
        cls = methods.find(name, self.extra_methods, root)
        try:
            return cls.model_validate(self.method.get(name, {}))
        except ValidationError as error:
            raise UserError(_explain(error, cls, f"method.{name}")) from None


def read(root: Path, overrides: Sequence[str] = ()) -> Params:
    """params.yaml of this folder with `section.key=value` overrides; UserError says what to change."""
    path = root / "params.yaml"
    if not path.is_file():
        raise UserError(f"there is no params.yaml in {root.resolve()}; go to your project's folder, or copy one there.")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"params.yaml is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise UserError("params.yaml holds no sections; the one in siloflow's checkout shows them.")
    for override in overrides:
        _apply(raw, override)
    return validate(raw, root)


def validate(raw: dict[str, Any], root: Path) -> Params:
    """Params from plain JSON; UserError names the key, the value and the nearest right one."""
    try:
        params = Params.model_validate(raw)
    except ValidationError as error:
        raise UserError(_explain(error, Params)) from None
    known = methods.names(params.extra_methods)
    for name in params.method:
        if name not in known:
            raise UserError(f"params.yaml: method.{name}: there is no such method{_near(name, known)}")
    for name in {*params.comparison.methods, params.comparison.reference}:
        methods.find(name, params.extra_methods, root)
    return params


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """`key: old → new` for every leaf that differs between two JSON trees."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    return [f"{k}: {before.get(k)} → {after.get(k)}" for k in keys]


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys to leaves, as MLflow shows parameters."""
    return dict(_leaves(tree))


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: write it as section.key=value, for example training.rounds=20.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"--set {override}: {text!r} is not a YAML value.") from None
    place: Any = raw
    *sections, last = [_index(part) for part in key.strip().split(".")]
    try:
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else place[section]
        place[last] = value
    except (TypeError, KeyError, IndexError, AttributeError):
        raise UserError(f"--set {override}: params.yaml has no section {key.rpartition('.')[0]}.") from None


def _index(part: str) -> str | int:
    return int(part) if part.isdigit() else part


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(v, dict | list) for v in tree):
        for i, value in enumerate(tree):
            yield from _leaves(value, f"{path}.{i}")
    else:
        yield path, tree


def _explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """pydantic's findings as sentences for people, the first three."""
    lines = []
    for found in error.errors()[:3]:
        path = [str(p) for p in found["loc"] if str(p) not in _TAGS]
        where = ".".join([prefix, *path] if prefix else path)
        if found["type"] == "extra_forbidden":
            lines.append(f"params.yaml: {where}: there is no such key{_near(path[-1], _fields(model, path[:-1]))}")
        elif found["type"] == "missing":
            lines.append(f"params.yaml: {where} is missing.")
        elif found["type"] == "union_tag_invalid":
            ctx = found["ctx"]
            tags = [t.strip(" '") for t in ctx["expected_tags"].split(",")]
            lines.append(f"params.yaml: {where}.kind: there is no {ctx['tag']!r}{_near(ctx['tag'], tags)}")
        elif found["type"] == "union_tag_not_found":
            lines.append(f"params.yaml: {where} needs a `kind`.")
        else:
            words = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
            lines.append(f"params.yaml: {where} is {found['input']!r}; it {words}.")
    return "\n".join(lines)


def _near(word: str, right: Sequence[str]) -> str:
    near = get_close_matches(word, right, 1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(right)}."


def _fields(model: Any, path: Sequence[str]) -> list[str]:
    """The keys that a section has, found by walking down the types."""
    for part in path:
        found = [m for m in _models(model) if part in m.model_fields]
        if part.isdigit():
            continue
        if not found:
            return []
        model = found[0].model_fields[part].annotation
    return sorted({name for m in _models(model) for name in m.model_fields})


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every pydantic model inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]


# pydantic puts the tag of a discriminated union into the path of an error; nobody wrote it there
_TAGS = {"mlp", "cross_entropy", "focal", "sgd", "adam", "adamw", "digits", "npz"} | {
    "equal", "column", "dirichlet", "rotation"
}  # fmt: skip

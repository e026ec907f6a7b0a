"""params.yaml, parsed once and checked at the door; inside, everything is typed."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from flows import method as methods
from flows.experiment import user_method as own_page
from silos import bounds, strict_yaml
from silos.data_params import DataParams
from silos.errors import UserError, shown
from silos.names import Word, checked
from silos.schemes.scheme_params import Name
from tasks.recording.addresses import has_password, has_wrong_port


class Section(BaseModel):
    """A part of params.yaml: no unknown keys, no changes after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Widths = Annotated[list[Annotated[int, Field(ge=1, le=bounds.WIDTH)]], Field(max_length=bounds.LAYERS)]
Channels = Annotated[list[Annotated[int, Field(ge=1, le=bounds.CHANNELS)]], Field(max_length=bounds.LAYERS)]


class NetworkParams(Section):
    """What every kind has: of how many networks a deep ensemble is, 1 being no ensemble."""

    members: int = Field(default=1, ge=1, le=bounds.COPIES)


class MLPParams(NetworkParams):
    """Dense layers; no hidden one is logistic or linear regression."""

    kind: Literal["mlp"]
    hidden: Widths = [64]
    dropout: float = Field(default=0.0, ge=0, lt=1)
    statistics: int = Field(default=0, ge=0, le=bounds.WIDTH)


class CNNParams(NetworkParams):
    """Convolutions with pooling, then dense layers."""

    kind: Literal["cnn"]
    channels: Channels = Field(default=[10, 20], min_length=1)
    kernel: int = Field(default=5, ge=1, le=bounds.COPIES)
    padding: bool = False
    hidden: Widths = [50]
    dropout: float = Field(default=0.0, ge=0, lt=1)
    statistics: int = Field(default=0, ge=0, le=bounds.WIDTH)


class ResidualParams(NetworkParams):
    """Residual stages with pooling, then dense layers with GELU; dropout also on the logits, as in the codebook paper."""

    kind: Literal["residual"]
    widths: Channels = Field(default=[16, 32, 64], min_length=1)
    hidden: Widths = [512]
    dropout: float = Field(default=0.1, ge=0, lt=1)
    logit_dropout: bool = True


class VGGParams(NetworkParams):
    """VGG16 with batch normalisation up to its last pooling, then the head of `residual`."""

    kind: Literal["vgg16_bn"]
    hidden: Widths = [512]
    dropout: float = Field(default=0.1, ge=0, lt=1)
    logit_dropout: bool = True
    pretrained: str | None = Field(default=None, min_length=1)


class ResNetParams(NetworkParams):
    """ResNet18 up to the mean over places, then the head of `residual`."""

    kind: Literal["resnet18"]
    hidden: Widths = [512]
    dropout: float = Field(default=0.1, ge=0, lt=1)
    logit_dropout: bool = True
    pretrained: str | None = Field(default=None, min_length=1)


class CrossEntropyParams(Section):
    """-log p."""

    kind: Literal["cross_entropy"]


class FocalParams(Section):
    """-(1 - p)^gamma log p."""

    kind: Literal["focal"]
    gamma: float = Field(default=2.0, ge=0, le=bounds.REAL)


class SquaredErrorParams(Section):
    """(prediction - y)^2, of a regression."""

    kind: Literal["squared_error"]


class SGDParams(Section):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    learning_rate: float = Field(gt=0, le=bounds.REAL)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, le=bounds.REAL)


class AdamParams(Section):
    """Adam; `adamw` decouples the weight decay."""

    kind: Literal["adam", "adamw"]
    learning_rate: float = Field(gt=0, le=bounds.REAL)
    weight_decay: float = Field(default=0.0, ge=0, le=bounds.REAL)


class TrainingParams(Section):
    """One budget for every method of a comparison."""

    rounds: int = Field(ge=1, le=bounds.TIMES)
    epochs: int = Field(ge=1, le=bounds.TIMES)
    batch: int = Field(ge=1, le=bounds.TIMES)
    optimiser: Annotated[SGDParams | AdamParams, Field(discriminator="kind")]
    objective: Annotated[CrossEntropyParams | FocalParams | SquaredErrorParams, Field(discriminator="kind")]


class ClientsParams(Section):
    """Who takes part in a round."""

    fraction: float = Field(default=1.0, gt=0, le=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    join: dict[Name, Annotated[int, Field(ge=1, le=bounds.TIMES)]] = {}


class EvaluationParams(Section):
    """When models are scored, and which round is reported."""

    every: int = Field(default=1, ge=1, le=bounds.TIMES)
    report: Literal["last", "best"] = "last"
    stop_at: float | None = Field(default=None, gt=0, le=bounds.REAL)
    passes: int = Field(default=20, ge=0, le=bounds.PASSES)


class ComparisonParams(Section):
    """What `siloflow compare` does when the command line names nothing."""

    methods: list[Annotated[str, Word()]] = Field(min_length=1)
    seeds: list[Annotated[int, Field(ge=0, le=bounds.SEED)]] = Field(min_length=1)
    reference: Annotated[str, Word()] = "fedavg"

    @field_validator("methods", "seeds")
    @classmethod
    def _no_repeats(cls, values: list) -> list:
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"{value} is named twice")
        return values


class EngineParams(Section):
    """How clients are computed; results are the same for any number of workers."""

    kind: Literal["auto", "batched", "vmap", "sequential"] = "auto"
    stack: Literal["auto"] | Annotated[int, Field(ge=1, le=bounds.CLIENTS)] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class RunnerParams(Section):
    """Where tasks run; results are the same anywhere."""

    kind: Literal["threads", "processes", "dask"] = "threads"
    workers: int = Field(default=1, ge=1, le=256)
    address: str | None = Field(default=None, min_length=1)

    @field_validator("address")
    @classmethod
    def _port(cls, address: str | None) -> str | None:
        if address is not None and has_wrong_port(address):
            raise ValueError(f"the port of {address} must be a number from 1 to 65535")
        return address

    @model_validator(mode="after")
    def _address_of_dask(self) -> "RunnerParams":
        if self.address is not None and self.kind != "dask":
            raise ValueError(
                f"address is a Dask scheduler's, and kind is {self.kind}; set kind to dask or address to null"
            )
        return self


class TrackingParams(Section):
    """What MLflow is given."""

    uri: str | None = None
    personal_models: bool = False

    @field_validator("uri")
    @classmethod
    def _port(cls, uri: str | None) -> str | None:
        if uri is not None and uri.startswith(("http:", "https:")) and has_wrong_port(uri):
            raise ValueError(f"the port of {uri} must be a number from 1 to 65535")
        return uri


class Params(Section):
    """The whole file."""

    data: DataParams
    model: Annotated[MLPParams | CNNParams | ResidualParams | VGGParams | ResNetParams, Field(discriminator="kind")]
    training: TrainingParams
    clients: ClientsParams = ClientsParams()
    evaluation: EvaluationParams = EvaluationParams()
    comparison: ComparisonParams
    method: dict[str, dict[str, Any]] = {}
    extra_methods: dict[str, str] = {}
    engine: EngineParams = EngineParams()
    runner: RunnerParams = RunnerParams()
    tracking: TrackingParams = TrackingParams()

    @field_validator("extra_methods")
    @classmethod
    def _plain_names(cls, pages: dict[str, str]) -> dict[str, str]:
        for name in pages:
            checked(name)  # a run's folder is called after its method
        return pages

    def page(self, name: str, root: Path) -> methods.Method:
        """The method with its own section's options.

        The first page costs the import of torch, so all that params name are looked at with it, and none before.
        """
        named = [name, *self.method, *self.comparison.methods, self.comparison.reference]
        return {each: self._page(each, root) for each in dict.fromkeys(named)}[name]

    def _page(self, name: str, root: Path) -> methods.Method:
        cls = methods.find(name, self.extra_methods, root)
        with own_page.refused(cls.__module__):
            try:
                return cls.model_validate(self.method.get(name, {}))
            except ValidationError as error:
                raise UserError(_explain(error, cls, f"method.{name}")) from None


def read(root: Path, overrides: Sequence[str] = ()) -> Params:
    """params.yaml of this folder with `section.key=value` overrides; UserError says what to change.

    What a method's own section holds is the method's matter: `Params.page` looks at it.
    """
    path = root / "params.yaml"
    if not path.is_file():
        raise UserError(f"there is no params.yaml in {root.resolve()}; go to your project's folder, or copy one there.")
    try:
        raw = strict_yaml.load(path.read_bytes())
    except strict_yaml.NotYamlError as error:
        raise UserError(f"params.yaml is not valid YAML: {error}.") from None
    if not isinstance(raw, dict):
        raise UserError("params.yaml holds no sections; the one in siloflow's checkout shows them.")
    for override in overrides:
        _apply(raw, override)
    return validate(raw)


def validate(raw: dict[str, Any]) -> Params:
    """Params from plain JSON; UserError names the key, the value and the nearest right one."""
    # a section whose lines are all commented out is none: YAML reads it as null
    raw = {section: value for section, value in raw.items() if value is not None}
    if isinstance(raw.get("method"), dict):
        raw["method"] = {name: {} if options is None else options for name, options in raw["method"].items()}
    for key, value in _leaves(raw):
        if any(has_password(text) for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise UserError(f"params.yaml: {key} holds a password, and would be printed and stored; {_NO_PASSWORD}.")
    try:
        params = Params.model_validate(raw)
    except ValidationError as error:
        raise UserError(_explain(error, Params)) from None
    stop_at, objective = params.evaluation.stop_at, params.training.objective.kind
    if stop_at is not None and stop_at > 1 and objective != "squared_error":
        raise UserError(
            f"params.yaml: evaluation.stop_at is {stop_at:g}; it must be at most 1, since it is an accuracy."
        )
    known = methods.names(params.extra_methods)
    named = [("method", name) for name in params.method]
    named += [("comparison.methods", name) for name in params.comparison.methods]
    for key, name in [*named, ("comparison.reference", params.comparison.reference)]:
        if name not in known:
            raise UserError(f"params.yaml: {key}: there is no method {name!r}{_near(name, known)}")
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
        raise UserError(f"{said}: params.yaml has no section {shown(key.rpartition('.')[0])}.") from None


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


def _explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """pydantic's findings as sentences for people, the first three."""
    lines = []
    for found in error.errors()[:3]:
        path, keys = _walk(model, found["loc"])
        where = ".".join([prefix, *path] if prefix else path)
        value, context = found["input"], found.get("ctx", {})
        if found["type"] == "extra_forbidden":
            words = f"{where}: there is no such key{_near(path[-1], keys)}"
        elif found["type"] == "missing":
            words = f"{where} is missing."
        elif found["type"] == "union_tag_invalid":
            tags = [t.strip(" '") for t in context["expected_tags"].split(",")]
            words = f"{where}.kind: there is no {context['tag']!r}{_near(context['tag'], tags)}"
        elif found["type"] == "union_tag_not_found":
            words = f"{where} needs a kind; there are {', '.join(keys)}."
        elif found["type"] == "value_error":
            said = str(context["error"]).rstrip(".")
            words = f"{where}: {said}" + ("" if said.endswith("?") else ".")
        else:
            is_now = "is empty" if value is None else f"is {shown(repr(value))}"
            words = f"{where} {is_now}; it must {_wish(found['type'], found['msg'], context)}."
        lines.append(f"params.yaml: {words}")
    return "\n".join(lines)


def _wish(kind: str, message: str, context: dict[str, Any]) -> str:
    """What a value must be, after `it must`."""
    for start, words in _WISHES.items():
        if kind.startswith(start):
            return words.format(**{name: _plain(value) for name, value in context.items()})
    return message.removeprefix("Input should ")


def _plain(value: Any) -> Any:
    """A bound as people write it: 1,000,000 and 0.001."""
    if not isinstance(value, int | float):
        return value
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


_WISHES = {
    "greater_than_equal": "be at least {ge}",
    "greater_than": "be greater than {gt}",
    "less_than_equal": "be at most {le}",
    "less_than": "be less than {lt}",
    "int_": "be a whole number",
    "float_": "be a number",
    "finite_number": "be a finite number",
    "bool_": "be true or false",
    "string_type": "be text",
    "string_pattern_mismatch": "match {pattern}",
    "string_too_short": "not be empty",
    "string_too_long": "have at most {max_length} characters",
    "list_type": "be a list",
    "tuple_type": "be a list",
    "too_short": "have at least {min_length} in it",
    "too_long": "have at most {max_length} in it",
    "dict_type": "be a section with keys of its own",
    "model_": "be a section with keys of its own",
    "literal_error": "be {expected}",
    "invalid_key": "have a word for its key",
}


def _near(word: str, right: Sequence[str]) -> str:
    near = get_close_matches(word, right, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(right)}." if right else "."


def _walk(model: Any, loc: Sequence[str | int]) -> tuple[list[str], list[str]]:
    """The keys of an error's place as the user wrote them, and the keys (or kinds) that there are at that place.

    pydantic puts the kind of a union's member into the place; nobody wrote it there.
    """
    path, here, within = [], _models(model), _models(model)
    several = False  # whether the last key's value may be of several plain types, whose names pydantic puts next
    for at, part in enumerate(loc):
        if several:
            break
        kinds = {kind: m for m in here if len(here) > 1 for kind in _kinds(m)}
        if part in kinds:
            here = within = [kinds[part]]
            continue
        path.append(str(part))
        if isinstance(part, str):
            within = here
            owner = [m for m in here if part in m.model_fields]
            annotation = owner[0].model_fields[part].annotation if owner else None
            here = _models(annotation)
            several = not here and sum(kind is not NoneType for kind in _members(annotation)) > 1
            if at == len(loc) - 1 and len(here) > 1:
                return path, [kind for m in here for kind in _kinds(m)]
    return path, sorted({name for m in within for name in m.model_fields})


def _kinds(model: type[BaseModel]) -> list[str]:
    field = model.model_fields.get("kind")
    return list(get_args(field.annotation)) if field else []


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; none of anything else."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every pydantic model inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]

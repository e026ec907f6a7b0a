"""Defines the base class of methods and the report of a round, and finds methods by name.

A method's module is imported on first use, and with it torch and Prefect; this module imports neither.
"""

import ast
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, model_validator

from flows.core import plugin_loader
from flows.core.plugin_loader import NONE, Plugins
from flows.core.search_space import Axis
from flows.plugins import METHODS
from silos.errors import UserError, shown
from silos.strict_yaml import refuse_booleans
from tasks.tracking.metric_names import metric_name_fault

if TYPE_CHECKING:  # these modules import torch, and the command line needs the names of methods without it
    from flows.methods.client_sampler import Sampler
    from flows.methods.common.conditioning import Conditioning
    from flows.methods.figure_context import FigureWriter
    from flows.methods.round_context import RoundContext, TrainingSetup
    from models.client_model import Model
    from models.server_state import ServerState
    from silos.cohort import Silos
    from tasks.messages.round_messages import Gradients, Update


PrivateTraining = Literal["noise", "kept"] | None

_COLUMNS = {"round", "client", "dropped", "role"}  # columns of clients.csv, besides those of each split


@dataclass(frozen=True)
class RoundReport:
    """Metrics of a round and of its clients, and messages for the user.

    ValueError if MLflow would refuse a metric, or if clients.csv already has a column of that name.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # column to client to value
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            problem = metric_name_fault(name)
            if problem:
                raise ValueError(f"RoundReport: metric {name!r}: {problem}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"RoundReport: metric {name!r}: got {value!r}, expected a number")
        for column in self.client_metrics:
            if column in _COLUMNS or column.startswith(("test/", "validation/")):
                raise ValueError(
                    f"RoundReport: column {column!r}: got a column that clients.csv has already, expected another name"
                )

    @classmethod
    def from_updates(cls, updates: "Sequence[Update] | Sequence[Gradients]") -> "RoundReport":
        """Report each client's training loss, and the mean of the losses weighted by rows; nothing if they are withheld."""
        if any(not len(u.loss) for u in updates):
            return cls()
        losses = {c: v for u in updates for c, v in zip(u.clients, u.loss.tolist(), strict=True)}
        rows = sum(int(u.rows.sum()) for u in updates)
        mean = sum(float((u.loss.double() * u.rows).sum()) for u in updates) / max(rows, 1)
        return cls({"loss/train": mean}, {"train_loss": losses})

    def merge(self, other: "RoundReport") -> "RoundReport":
        """Return both reports in one; if both name a metric, `other` has the value."""
        return RoundReport(
            {**self.metrics, **other.metrics},
            {**self.client_metrics, **other.client_metrics},
            (*self.messages, *other.messages),
        )


class Method(BaseModel, ABC):
    """Base class of methods: its fields are the method's options in params.yaml.

    A method defines `init`, `run_round` and `model`; the other members have defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _numbers = model_validator(mode="before")(refuse_booleans)

    tested_model: ClassVar[Literal["global", "personal"]] = "global"
    """Whether all clients are scored on one global model, or each on a personal model."""
    takes_members: ClassVar[bool] = True
    """Whether the method can train a deep ensemble (model.members); False if it wraps a single network."""
    takes_aggregation: ClassVar[bool] = True
    """Whether `aggregation` of params.yaml applies: False if clients send sums or more than weights."""
    pools_rows: ClassVar[bool] = False
    """Whether it trains on the rows of several clients together, which rows at several places do not allow."""

    private_training: ClassVar[PrivateTraining] = None
    """How the method keeps the guarantee of training.privacy, in its own class body, since a subclass may send more.

    "noise": clients send noisy weights only. "kept": clients also train weights without noise that they keep;
    their scores have no guarantee. None: the method is refused.
    """

    pays_as: ClassVar[str | None] = ""
    """The method with the same queries, which clients pay for once; empty if none, None if all trained weights stay."""

    is_bound: ClassVar[bool] = False
    """Whether the method is only a bound for others, as it uses what no server may see: it is no candidate for use."""
    tuned: ClassVar[Mapping[str, Axis]] = {}
    """Options that a comparison with `tune` searches besides the learning rate: 1, 2, 4 or 8 combinations of values."""
    uses_learning_rate: ClassVar[bool] = True
    """Whether training.optimiser has an effect; if False, only the options of `tuned` are searched."""

    @abstractmethod
    def init(self, setup: "TrainingSetup") -> "ServerState":
        """Return the state before the first round.

        Args:
            setup: The clients (names and counts of rows), the network, the local training and the seed.

        Raises:
            UserError: If the settings do not fit the method; nothing has been trained then.
        """

    @abstractmethod
    def run_round(self, state: "ServerState", round: "RoundContext") -> "tuple[ServerState, RoundReport]":
        """Run one round, composed of tasks; return the new state and the report.

        A resumed run repeats an interrupted round, and must get the same result. So random numbers come only from
        `models.prng`.

        Args:
            state: What the server knows after the round before.
            round: The clients that take part, and the calls that run tasks on them and on the server.
        """

    @abstractmethod
    def model(self, state: "ServerState", setup: "TrainingSetup") -> "Model":
        """Return the model that each client would use now, as far as the server knows it.

        Args:
            state: What the server knows.
            setup: The clients to cover: in training the federated ones, in evaluation also fresh and unseen ones.
        """

    def leave(self, state: "ServerState", round: "RoundContext") -> "tuple[ServerState, RoundReport]":
        """Remove clients that leave for good before a round; `round.clients` are the leaving clients.

        By default nothing changes. These clients are not sampled again, but are scored like other absent clients.
        """
        return state, RoundReport()

    def silos_with_a_model(self, silos: "Silos") -> "Silos":
        """Select the clients, of all roles, that have a model; all clients by default."""
        return silos

    def scored_model(self, state: "ServerState", round: "RoundContext") -> "Model":
        """Return the model that is scored and logged; all clients of the run take part in `round`.

        It is `model` by default. A method whose model depends on clients may run tasks here, on training rows only.
        """
        return self.model(state, round.setup)

    def other_models(self, state: "ServerState", round: "RoundContext") -> "Mapping[str, Model]":
        """Return the models that are scored besides `scored_model`, under the names that prefix their metrics."""
        return {}

    def sampler(self, usual: "Sampler") -> "Sampler":
        """Return the sampler of clients; by default the one that params.yaml configures (`clients`)."""
        return usual

    def figures(self) -> "Sequence[FigureWriter]":
        """Return the figures that are drawn at the end of a run (see flows.methods.figure_context)."""
        return ()

    def conditioning(self) -> "Conditioning | None":
        """Return the client statistics that the model reads besides rows; None by default."""
        return None


def private_training_of(method: type[Method]) -> PrivateTraining:
    """Return how a method keeps the guarantee of training.privacy, as its own class body says."""
    found: PrivateTraining = vars(method).get("private_training")
    return found


def method_names(plugins: Plugins = NONE) -> list[str]:
    """List the names of all methods: the built-in ones, without importing them, then those of plugins."""
    return sorted(METHODS.built_in) + sorted(plugins.of(METHODS))


def find_method(name: str, plugins: Plugins = NONE) -> type[Method]:
    """Return the class of the method; UserError with the nearest name if no method has this name."""
    entry = plugins.of(METHODS).get(name)
    if entry is not None:
        return _checked(name, entry.target)
    if name not in METHODS.built_in:
        matches = get_close_matches(name, method_names(plugins), 1)
        hint = f"Did you mean {matches[0]}?" if matches else f"Choose one of {', '.join(method_names(plugins))}."
        raise UserError(f"method: got {shown(repr(name))}, expected a known method. {hint}")
    module = METHODS.find(name)
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
    (cls,) = [c for c in classes if c.__module__ == module.__name__]
    return _checked(name, cls)


def _checked(name: str, cls: object) -> type[Method]:
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(f"method {name!r}: got {shown(repr(cls))}, expected a class that extends Method.")
    if inspect.isabstract(cls):
        raise UserError(
            f"method {name!r}: got a class without {', '.join(sorted(cls.__abstractmethods__))}, "
            "expected all methods that Method declares abstract. Define them."
        )
    return cls


class MethodSummary(TypedDict):
    """A method in one line."""

    method: str
    summary: str


class MethodDescription(MethodSummary):
    """What a method is, and the defaults of its options."""

    model: Literal["global", "personal"]
    """Whether clients share a model, or have personal ones."""
    options: dict[str, Any]


class UnlistedMethod(TypedDict):
    """A method of a plugin file that params.yaml does not list."""

    method: str
    file: str


class MethodList(TypedDict):
    """The methods that can be run, and those that could be if their files were listed."""

    methods: "Sequence[MethodSummary]"
    unlisted: list[UnlistedMethod]


def describe_method(name: str, plugins: Plugins = NONE) -> MethodDescription:
    """Return the method's summary, its options' defaults and its kind of model, for `siloflow methods`."""
    cls = find_method(name, plugins)
    doc = sys.modules[cls.__module__].__doc__ or cls.__doc__ or ""
    with plugin_loader.user_code_errors(cls.__module__):
        options = cls().model_dump(mode="json")
    return {"method": name, "model": cls().tested_model, "summary": doc.strip().partition("\n")[0], "options": options}


def method_summaries(plugins: Plugins = NONE) -> list[MethodSummary]:
    """List all methods with the first line of their modules' docstrings; built-in modules are not imported."""
    built_in, own = sorted(METHODS.built_in.items()), sorted(plugins.of(METHODS))
    return [
        *(MethodSummary(method=name, summary=_first_line(module)) for name, module in built_in),
        *(MethodSummary(method=name, summary=describe_method(name, plugins)["summary"]) for name in own),
    ]


def _first_line(module: str) -> str:
    text = (Path(__file__).parents[2] / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def start_method(method: Method, setup: "TrainingSetup") -> "ServerState":
    """Return the state before the first round; an error in a plugin's code is reported with its line.

    UserError if the network is a deep ensemble and the method wraps a single network, if the method cannot take the
    robust aggregation that is set, or if it pools rows of several places.
    """
    if method.pools_rows:
        setup.silos.pool().by_place()
    if len(setup.network.single_networks) > 1 and not method.takes_members:
        others = ", ".join(name for name in method_names() if find_method(name).takes_members)
        raise UserError(
            f"params.yaml: model.members: got {len(setup.network.single_networks)}, expected 1, since this method "
            f"wraps a single network. Set model.members to 1, or use one of {others}."
        )
    if setup.training.privacy and not private_training_of(type(method)):
        others = ", ".join(name for name in method_names() if private_training_of(find_method(name)))
        raise UserError(
            "params.yaml: training.privacy.epsilon: got a number, expected null for this method, since its clients send "
            f"numbers without noise. Use one of {others}, or set it to null."
        )
    if setup.aggregation.is_robust and not method.takes_aggregation:
        others = ", ".join(name for name in method_names() if find_method(name).takes_aggregation)
        raise UserError(
            f"params.yaml: aggregation: got {setup.aggregation.setting}, expected clip: null and rule: mean, since the "
            "server of this method does not average clients' weights. Use these, or one of "
            f"{others}."
        )
    with plugin_loader.user_code_errors(type(method).__module__):
        return method.init(setup)

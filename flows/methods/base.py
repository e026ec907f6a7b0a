"""What a method is, and how one is found by name.

Pages are imported when they are asked for, and with them torch and Prefect; this module needs neither.
"""

import ast
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from flows.experiment import plugin_loader
from flows.experiment.comparison.search_space import Axis
from flows.experiment.plugin_loader import NONE, Plugins
from flows.methods.round_report import RoundReport
from flows.plugins import METHODS
from silos.errors import UserError, shown
from silos.strict_yaml import refuse_booleans

if TYPE_CHECKING:  # types of what a page is given: they import torch, and names of methods are needed before
    from flows.experiment.figure_context import FigureWriter
    from flows.methods.common.conditioning import Conditioning
    from flows.methods.context import RoundContext, TrainingSetup
    from flows.methods.samplers.client_sampler import Sampler
    from models.client_model import Model
    from models.server_state import ServerState
    from silos.cohort import Silos


class Method(BaseModel, ABC):
    """A frozen record of the method's own section of params.yaml, and the three things a method says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _numbers = model_validator(mode="before")(refuse_booleans)

    tested_model: ClassVar[Literal["global", "personal"]] = "global"
    """Whether every client is scored on one model, or on its own."""
    takes_members: ClassVar[bool] = True
    """Whether it trains a deep ensemble (model.members); not where it makes a network of its own around a single one."""
    tuned: ClassVar[Mapping[str, Axis]] = {}
    """Options that a comparison with `tune` tries, beside the learning rate: 1, 2, 4 or 8 combinations of their values."""

    @abstractmethod
    def init(self, setup: "TrainingSetup") -> "ServerState":
        """The state before the first round."""

    @abstractmethod
    def run_round(self, state: "ServerState", round: "RoundContext") -> "tuple[ServerState, RoundReport]":
        """One round, composed of tasks."""

    @abstractmethod
    def model(self, state: "ServerState", setup: "TrainingSetup") -> "Model":
        """What every client would use today, as far as the server knows it."""

    def leave(self, state: "ServerState", round: "RoundContext") -> "tuple[ServerState, RoundReport]":
        """Clients leave for good before a round, whose clients here are they: nothing, unless a page says otherwise.

        They are not called any more. They are scored like others that are not.
        """
        return state, RoundReport()

    def silos_with_a_model(self, silos: "Silos") -> "Silos":
        """The clients, of all roles, that have a model: everybody, unless a page says otherwise."""
        return silos

    def scored_model(self, state: "ServerState", round: "RoundContext") -> "Model":
        """The model that is scored and logged, in a round in which every client of the problem takes part.

        `model`, unless clients have a say in it: here a page may run tasks, which open their training rows only.
        """
        return self.model(state, round.setup)

    def other_models(self, state: "ServerState", round: "RoundContext") -> "Mapping[str, Model]":
        """What is scored beside `scored_model`, asked in the same way, by the name that its metrics are told under."""
        return {}

    def sampler(self, usual: "Sampler") -> "Sampler":
        """Who is called in a round: as params.yaml says (`clients`), unless a page knows better."""
        return usual

    def figures(self) -> "Sequence[FigureWriter]":
        """What is drawn when a run ends; see flows.experiment.figure_context."""
        return ()

    def conditioning(self) -> "Conditioning | None":
        """What its model is given of a client beside rows; nothing, unless a page says otherwise."""
        return None


def method_names(plugins: Plugins = NONE) -> list[str]:
    """List every method's name: the built-in ones, without importing any, then those of the plugins."""
    return sorted(METHODS.built_in) + sorted(plugins.of(METHODS))


def find_method(name: str, plugins: Plugins = NONE) -> type[Method]:
    """Return the class of the method; UserError with the nearest name if there is none."""
    entry = plugins.of(METHODS).get(name)
    if entry is not None:
        return _checked(name, entry.target)
    if name not in METHODS.built_in:
        near = get_close_matches(name, method_names(plugins), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(method_names(plugins))}."
        raise UserError(f"there is no method {shown(repr(name))}; {hint}")
    page = METHODS.find(name)
    classes = [c for c in vars(page).values() if isinstance(c, type) and issubclass(c, Method)]
    (cls,) = [c for c in classes if c.__module__ == page.__name__]
    return _checked(name, cls)


def _checked(name: str, cls: Any) -> type[Method]:
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(f"method {name!r}: got {shown(repr(cls))}, expected a class that extends Method.")
    if inspect.isabstract(cls):
        raise UserError(f"the page of method {name!r} must define {', '.join(sorted(cls.__abstractmethods__))}.")
    return cls


def describe_method(name: str, plugins: Plugins = NONE) -> dict[str, Any]:
    """What the method's page says of it and its options, for `siloflow methods`."""
    cls = find_method(name, plugins)
    page = sys.modules[cls.__module__].__doc__ or cls.__doc__ or ""
    with plugin_loader.user_code_errors(cls.__module__):
        options = cls().model_dump(mode="json")
    return {"method": name, "model": cls().tested_model, "summary": page.strip().partition("\n")[0], "options": options}


def method_summaries(plugins: Plugins = NONE) -> list[dict[str, str]]:
    """Each method with the first line of its page; built-in pages are not imported."""
    return [{"method": name, "summary": _first_line(module)} for name, module in sorted(METHODS.built_in.items())] + [
        {key: describe_method(name, plugins)[key] for key in ("method", "summary")}
        for name in sorted(plugins.of(METHODS))
    ]


def _first_line(module: str) -> str:
    text = (Path(__file__).parents[2] / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def start_method(method: Method, setup: "TrainingSetup") -> "ServerState":
    """What the server knows before the first round; an error in a user's own page is told with its line.

    UserError for a deep ensemble where the method makes a network of its own.
    """
    if len(setup.network.single_networks) > 1 and not method.takes_members:
        others = ", ".join(name for name in method_names() if find_method(name).takes_members)
        raise UserError(
            f"params.yaml: model.members is {len(setup.network.single_networks)}, and this method makes a network of "
            f"its own around a single one; set model.members to 1, or use one of {others}."
        )
    with plugin_loader.user_code_errors(type(method).__module__):
        return method.init(setup)

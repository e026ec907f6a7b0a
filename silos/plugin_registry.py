"""Defines registries: one for each kind of object that siloflow includes and that a user may add in a plugin file.

A built-in entry names the location of its code, which is imported when it is used. What a plugin file registers belongs
only to the projects that name the file, not to other projects of the same process.
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, create_model

from silos.param_types import PlainText, plain

Target = TypeVar("Target", bound=Callable[..., object])


@dataclass(frozen=True)
class Entry:
    """The registration of a plugin file.

    Attributes:
        kind: The kind of the registry, for example "metric".
        name: The name that params.yaml uses.
        target: The function or class.
        file: The path of the plugin file.
        module: The name of the module that the file was run in.
        digest: The md5 of the text that was run. The file may have been edited since.
    """

    kind: str
    name: str
    target: Any
    file: str
    module: str
    digest: str


@dataclass(frozen=True)
class _Loading:
    file: str
    module: str
    digest: str
    entries: list[Entry]


_loading: ContextVar[_Loading | None] = ContextVar("_loading", default=None)


@contextmanager
def collect_entries(file: str, module: str, digest: str) -> Iterator[list[Entry]]:
    """Collect what the code inside registers as entries of this plugin file.

    Args:
        file: The path of the plugin file.
        module: The name of the module that it is imported as.
        digest: The hash of its content.
    """
    loading = _Loading(file, module, digest, [])
    token = _loading.set(loading)
    try:
        yield loading.entries
    finally:
        _loading.reset(token)


class Registry:
    """Holds the names of one kind.

    `built_in` maps names to `module:attribute`; if it is a function, it is called when the names are needed.
    """

    def __init__(self, kind: str, built_in: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> None:
        self.kind, self._built_in = kind, built_in

    @property
    def built_in(self) -> Mapping[str, str]:
        """Map names to the locations of the built-in entries."""
        return self._built_in() if callable(self._built_in) else self._built_in

    def find(self, name: str) -> Any:
        """Import a built-in entry; KeyError if there is none."""
        module, _, attribute = self.built_in[name].partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, attribute) if attribute else imported

    def register(self, name: str) -> Callable[[Target], Target]:
        """Return a decorator that registers a function or class under this name for params.yaml.

        Raises:
            UserError: If the name is no plain name.
            ValueError: If the name is taken, or if the code is not loaded as a plugin.
        """
        plain(name, f"the {self.kind}")
        loading = _loading.get()
        if loading is None:
            raise ValueError(
                f"{self.kind} {name!r}: got a registration outside of a plugin file, expected one in "
                "a file under plugins. Name the file under plugins in params.yaml"
            )
        if name in self.built_in:
            raise ValueError(
                f"{self.kind} {name!r}: got the name of a built-in {self.kind}, expected a new name. Use another name"
            )
        if any(entry.kind == self.kind and entry.name == name for entry in loading.entries):
            raise ValueError(f"{self.kind} {name!r}: got a second registration, expected one. Use another name")

        def add_entry(target: Target) -> Target:
            loading.entries.append(Entry(self.kind, name, target, loading.file, loading.module, loading.digest))
            return target

        return add_entry


class Registered(BaseModel):
    """A section of params.yaml whose `kind` names a plugin's entry; its other keys are the entry's options."""

    entry: ClassVar[Entry]
    kind: Annotated[str, PlainText()]


def bind_options(section: Registered) -> Callable[..., Any]:
    """Bind the options of a registered section to its function or class; the result can be sent to workers."""
    return partial(section.entry.target, **options_of(section))


def options_of(section: Registered) -> dict[str, Any]:
    """Return the options of a registered section by name."""
    names = inspect.signature(section.entry.target).parameters
    return {name: getattr(section, name) for name in names if name in type(section).model_fields}


def run_entry(section: Registered, **given: object) -> Any:
    """Call the function or class with its options, and with those of `given` that it accepts."""
    return bind_options(section)(**accepted_arguments(section.entry.target, given))


def accepted_arguments(target: Callable[..., object], given: Mapping[str, object]) -> dict[str, object]:
    """Return those of the arguments that are named among the function's parameters."""
    names = inspect.signature(target).parameters
    return {name: value for name, value in given.items() if name in names}


def section_of(entry: Entry, *bases: type[BaseModel], given: Collection[str] = ()) -> type[Registered]:
    """Create the section of params.yaml for an entry: `kind`, and a field for each option of the function or class.

    Parameters named in `given` are passed by siloflow. The others are options: the annotation gives an option's type,
    and an option without a default is required.

    Raises:
        TypeError: For an option without annotation, or with a name that the section has already.
    """
    fields: dict[str, Any] = {}
    reserved_names = {"kind", "entry", *(key for base in bases for key in base.model_fields)}
    label = f"{entry.kind} {entry.name!r}"
    for name, parameter in inspect.signature(entry.target, eval_str=True).parameters.items():
        if name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.annotation is parameter.empty:
            hint = f" ({', '.join(given)} are passed by siloflow)" if given else ""
            raise TypeError(f"{label}: option {name}: got no type, expected one{hint}. Write {name}: int or the like")
        if name in reserved_names or any(hasattr(base, name) for base in bases):
            raise TypeError(
                f"{label}: option {name}: got a name that every such section has, expected another. Rename the option"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (parameter.annotation, default)
    section: Any = create_model(
        entry.name, __base__=(*bases, Registered), kind=(cast(Any, Literal[entry.name]), ...), **fields
    )
    section.entry = entry
    return cast(type[Registered], section)

"""Registries: one for each kind of thing that siloflow brings and that a user may add in a plugin file.

A built-in entry is the place of its code, and is imported when it is used. What a plugin file registers belongs to the
projects that name the file, and to no other project of the same process.
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

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """What a plugin file registered: its kind and name, the function or class, and the file that it comes from.

    Attributes:
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
    found: list[Entry]


_loading: ContextVar[_Loading | None] = ContextVar("_loading", default=None)


@contextmanager
def collected(file: str, module: str, digest: str) -> Iterator[list[Entry]]:
    """Collect what the code inside registers as entries of this plugin file; see `Entry` for the arguments."""
    loading = _Loading(file, module, digest, [])
    token = _loading.set(loading)
    try:
        yield loading.found
    finally:
        _loading.reset(token)


class Registry:
    """The names of one kind.

    `built_in` gives names to `module:attribute`; a function lists them when they are needed.
    """

    def __init__(self, kind: str, built_in: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> None:
        self.kind, self._built_in = kind, built_in

    @property
    def built_in(self) -> Mapping[str, str]:
        """Names to the places of the built-in entries."""
        return self._built_in() if callable(self._built_in) else self._built_in

    def find(self, name: str) -> Any:
        """Import a built-in entry; KeyError if there is none."""
        module, _, attribute = self.built_in[name].partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, attribute) if attribute else imported

    def register(self, name: str) -> Callable[[Target], Target]:
        """Register the decorated function or class under this name, which params.yaml then uses.

        Raises:
            UserError: if the name is no plain name.
            ValueError: if it is taken, or if the code is not loaded as a plugin.
        """
        plain(name, f"the {self.kind}")
        loading = _loading.get()
        if loading is None:
            raise ValueError(f"{self.kind} {name!r}: got no plugin file. Name the file under plugins in params.yaml")
        if name in self.built_in:
            raise ValueError(f"{self.kind} {name!r}: siloflow has one of this name. Use another name")
        if any(entry.kind == self.kind and entry.name == name for entry in loading.found):
            raise ValueError(f"{self.kind} {name!r}: is registered twice. Use another name")

        def known(target: Target) -> Target:
            loading.found.append(Entry(self.kind, name, target, loading.file, loading.module, loading.digest))
            return target

        return known


class Registered(BaseModel):
    """A section of params.yaml whose `kind` names a plugin's entry; its other keys are the entry's options."""

    entry: ClassVar[Entry]
    kind: Annotated[str, PlainText()]


def bound(section: Any) -> Callable[..., Any]:
    """The function or class of a registered section with its options; it travels to worker processes."""
    return partial(section.entry.target, **options_of(section))


def options_of(section: Any) -> dict[str, Any]:
    """The options of a registered section, by name."""
    names = inspect.signature(section.entry.target).parameters
    return {name: getattr(section, name) for name in names if name in type(section).model_fields}


def run_entry(section: Any, **given: Any) -> Any:
    """Call the function or class with its options, and with those of `given` that it names."""
    return bound(section)(**taken(section.entry.target, given))


def taken(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that the function names among its parameters."""
    names = inspect.signature(target).parameters
    return {name: value for name, value in given.items() if name in names}


def section_of(entry: Entry, *bases: type[BaseModel], given: Collection[str] = ()) -> type[Registered]:
    """Make the section of params.yaml for an entry: `kind`, and a field for each option of the function or class.

    Of its parameters those in `given` are passed by siloflow. The others are options: the annotation says what an option
    takes, and one without a default must be written.

    Raises:
        TypeError: for an option without annotation, or of a name that the section has already.
    """
    fields: dict[str, Any] = {}
    taken_names = {"kind", "entry", *(key for base in bases for key in base.model_fields)}
    what = f"{entry.kind} {entry.name!r}"
    for name, parameter in inspect.signature(entry.target, eval_str=True).parameters.items():
        if name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.annotation is parameter.empty:
            passed = f" ({', '.join(given)} are passed by siloflow)" if given else ""
            raise TypeError(f"{what}: the option {name} has no type{passed}. Write {name}: int or the like")
        if name in taken_names or any(hasattr(base, name) for base in bases):
            raise TypeError(f"{what}: {name} is a name of every such section. Use another name for the option")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (parameter.annotation, default)
    made: Any = create_model(
        entry.name, __base__=(*bases, Registered), kind=(cast(Any, Literal[entry.name]), ...), **fields
    )
    made.entry = entry
    return cast(type[Registered], made)

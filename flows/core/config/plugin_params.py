"""Builds the type of params.yaml for a project with plugins: the kinds that plugins register may be used in it.

The keys of a plugin's section are the options of its function or class, so they are checked like all other keys.
"""

from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import or_
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, Field, create_model

from flows.core import plugin_loader
from flows.core.config.clients_params import ClientsParams, OwnSampler, Sampling, options_given
from flows.core.config.params_schema import (
    EvaluationParams,
    FigureParams,
    NetworkParams,
    Networks,
    Params,
    Section,
)
from flows.core.plugin_loader import Plugins
from flows.plugins import CALLBACKS, FIGURES, METRICS, NETWORKS, SAMPLERS
from silos.data_params import PARTITIONERS, Assignment, Change, DataParams, OwnPartitioner
from silos.plugin_registry import Entry, Registered, Registry, section_of
from silos.sources.source_params import SOURCES, OwnSource

Base = TypeVar("Base", bound=BaseModel)

Fields = dict[str, Any]
"""The annotation and the default of each field, as `create_model` takes them."""


class OwnNetwork(NetworkParams, Registered):
    """A network of a plugin file."""


class Chosen(Section, Registered):
    """A metric, figure or callback of a plugin file."""


@lru_cache(maxsize=64)
def params_type(plugins: Plugins) -> type[Params]:
    """Return the type of params with these plugins; Params itself if there are none.

    Its unions have the sections of the plugins and the built-in ones, and `registered` is `plugins`.
    """
    if not plugins.entries:
        return Params
    # a default instance is made of the extended class each time, since pydantic does not validate defaults
    data: Fields = {}
    sources = _sections(plugins, SOURCES, ("root", "seed"), OwnSource)
    steps = _sections(plugins, PARTITIONERS, ("rows", "at"), OwnPartitioner)
    if sources:
        data["source"] = (_union(DataParams.model_fields["source"].annotation, *sources), ...)
    if steps:
        step = _union(Assignment | Change, *steps)
        data["scheme"] = (cast(Any, tuple)[step, ...], ...)
    fields: Fields = {}
    if data:
        fields["data"] = (_extended(DataParams, data), ...)
    networks = _sections(plugins, NETWORKS, ("shape", "outputs"), OwnNetwork)
    if networks:
        fields["model"] = (_union(Networks, *networks), ...)
    samplers = [_section(entry, options_given(entry), OwnSampler) for entry in plugins.of(SAMPLERS).values()]
    if samplers:
        clients = _extended(ClientsParams, {"sampling": (_union(Sampling, *samplers), Field(default=_UNIFORM))})
        fields["clients"] = (clients, clients())
    metrics = _sections(plugins, METRICS, ("logits", "y"), Chosen)
    if metrics:
        evaluation = _extended(EvaluationParams, {"metrics": (_list_of(metrics), [])})
        fields["evaluation"] = (evaluation, evaluation())
    figures = _sections(plugins, FIGURES, ("scene",), Chosen)
    if figures:
        fields["figures"] = (_list_of([FigureParams, *figures]), [])
    callbacks = _sections(plugins, CALLBACKS, (), Chosen)
    if callbacks:
        fields["callbacks"] = (_list_of(callbacks), [])
    schema = _extended(Params, fields)
    schema.registered = plugins
    return schema


_UNIFORM = ClientsParams().sampling


def _sections(
    plugins: Plugins, registry: Registry, given: tuple[str, ...], base: type[BaseModel]
) -> list[type[Registered]]:
    return [_section(entry, given, base) for entry in plugins.of(registry).values()]


def _section(entry: Entry, given: tuple[str, ...], base: type[BaseModel]) -> type[Registered]:
    """Call `section_of`; an option that pydantic cannot check is a user's mistake."""
    with plugin_loader.user_code_errors(entry.module):
        return section_of(entry, base, given=given)


def _extended(base: type[Base], fields: Fields) -> type[Base]:
    return create_model(base.__name__, __base__=base, **fields)


def _union(built_in: object, *sections: object) -> Any:
    return Annotated[reduce(or_, sections, built_in), Field(discriminator="kind")]


def _list_of(sections: Iterable[type[BaseModel]]) -> object:
    first, *others = sections
    item = _union(first, *others) if others else first
    return cast(Any, list)[item]

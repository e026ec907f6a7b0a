"""The methods that params name: whether they exist, and each with the options of its own section."""

from pathlib import Path

from pydantic import ValidationError

from flows.config.params_schema import Params
from flows.config.validation_errors import explain_error, nearest_hint
from flows.experiment import plugin_loader
from flows.methods.base import Method, find_method, method_names
from silos.errors import UserError


def check_names(params: Params, root: Path) -> None:
    """Raise a UserError if params name a method that does not exist; imports no built-in method."""
    known = method_names(plugin_loader.load(root, params.plugins))
    named = [("method", name) for name in params.method]
    named += [("comparison.methods", name) for name in params.comparison.methods]
    for key, name in [*named, ("comparison.reference", params.comparison.reference)]:
        if name not in known:
            raise UserError(f"params.yaml: {key}: there is no method {name!r}{nearest_hint(name, known)}")


def method_of(params: Params, name: str, root: Path) -> Method:
    """Return the method with the options of its section of params.yaml.

    The first method costs the import of torch, so the options of all methods that params name are checked with it.

    Args:
        params: The section `method` holds the options.
        name: The method's name.
        root: The project's folder, in which plugin files are named.

    Raises:
        UserError: If there is no such method, or a method that params name does not take its options.
    """
    named = [name, *params.method, *params.comparison.methods, params.comparison.reference]
    return {each: _with_options(params, each, root) for each in dict.fromkeys(named)}[name]


def _with_options(params: Params, name: str, root: Path) -> Method:
    cls = find_method(name, plugin_loader.load(root, params.plugins))
    with plugin_loader.user_code_errors(cls.__module__):
        try:
            return cls.model_validate(params.method.get(name, {}))
        except ValidationError as error:
            raise UserError(explain_error(error, cls, f"method.{name}")) from None

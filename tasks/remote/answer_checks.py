"""Check what a place answers against the step, the model and the clients of the request."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model, first_client
from silos.cohort import Silos
from silos.dataset import SPLITS
from silos.errors import DivergedError, UserError, shown
from silos.param_types import is_plain
from tasks.messages.message_policy import Axes, Message, UnderPrivacy, axes_of, privacy_rules_of

_REF = re.compile(r"k?[0-9a-f]{32}/[0-9]{1,6}")
_MOST_TEXT = 500  # characters of a reason, or of the version of an earlier report


def check_messages(
    place: str, step: str, silos: Silos, arguments: Mapping[str, object], messages: Sequence[Message]
) -> None:
    """Check the messages that a place answers to a step.

    Types of fields are checked when the answer is decoded. Here: clients, lengths of axes, types and shapes of tensors,
    numbers of rows, finite numbers, references and words. An update with the weights of single clients may be infinite or
    NaN: a method that asks for them decides which clients count, as a robust mean does.

    Args:
        place: The place.
        step: The step.
        silos: The clients that it ran for.
        arguments: The arguments of the step by name; one may be a model.
        messages: The answer.

    Raises:
        UserError: If a field is not as the step makes it. It names place, step and field.
        DivergedError: If a number is not finite that has to be.
    """
    models = [value for value in arguments.values() if isinstance(value, Model)]
    singles, answered = bool(arguments.get("each")), set[tuple[object, ...]]()
    for message in messages:
        where = f"place {place}: {step}: {type(message).__name__}"
        clients = message.clients
        words = sorted(
            (name, value) for name, value in vars(message).items() if isinstance(value, str)
        )  # such as a split
        keys = {(type(message), *words, client) for client in clients}
        if keys & answered:
            raise _unfit(f"{where}.clients", f"{', '.join(clients)} again", "each client in one message of a kind")
        answered |= keys
        if len({*clients}) != len(clients) or {*clients} - {*silos.clients}:
            raise _unfit(f"{where}.clients", ", ".join(clients), "some of the clients of the request, each once")
        declared, rules = axes_of(type(message)), privacy_rules_of(type(message))
        for name, value in vars(message).items():
            axes = declared.get(name)
            if axes is None:
                _check_words(f"{where}.{name}", name, value, clients)
                continue
            if rules.get(name) is UnderPrivacy.WITHHELD and isinstance(value, Tensor) and not len(value):
                continue
            finite = axes.finite and not singles
            for key, tensor in _tensors(value):
                field = f"{where}.{name}" + (f" of {shown(key, 40)}" if key else "")
                _check_tensor(field, key, tensor, axes, len(clients), models, finite)
            if name == "rows" and axes.names == ("clients",):
                _check_rows(f"{where}.rows", value, clients, silos)


def _check_tensor(
    field: str, key: str, tensor: Tensor, axes: Axes, clients: int, models: Sequence[Model], finite: bool
) -> None:
    kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if kind not in axes.dtypes:
        raise _unfit(field, f"numbers of {kind}", " or ".join(axes.dtypes))
    before = shape[: len(axes.names)]
    if axes.like_model:
        expected = [w.shape for model in models for w in _weights(model, key)]
        if not any(shape[len(axes.names) :] == tuple(size) for size in expected):
            known = (
                f"the shape {tuple(expected[0])} after {len(axes.names)} axes" if expected else "a weight of the model"
            )
            raise _unfit(field, f"the shape {shape}", known)
    elif "*" not in axes.names and len(shape) != len(axes.names):
        raise _unfit(field, f"{len(shape)} axes", f"{len(axes.names)}: {', '.join(axes.names)}")
    for length, name in zip(before, axes.names, strict=False):
        wanted = clients if name == "clients" else int(name) if name.isdecimal() else length
        if length != wanted:
            raise _unfit(field, f"{length} on the axis {name}", str(wanted))
    if finite and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise DivergedError(
            f"{field}: got a number that is not finite, expected finite ones. Training diverged there: lower the learning "
            "rate, or leave these clients out by clients.leave."
        )


def _weights(model: Model, name: str) -> Iterator[Tensor]:
    """Yield the tensors of a model with this name, or with its rest after a prefix, such as that of scaffold's variates."""
    for part in (model.shared, first_client(model.personal), first_client(model.context)):
        for known in (name, name.partition("/")[2]):
            if known in part:
                yield part[known]


def _check_rows(field: str, rows: Tensor, clients: Sequence[str], silos: Silos) -> None:
    """Raise UserError for more rows than a client has in any split, which would decide an average alone."""
    listed = silos.select(clients)
    most = np.max([listed.rows_array(split) for split in SPLITS], 0, initial=0)
    most = np.maximum(most, max(silos.common(split) for split in SPLITS))
    for client, count, limit in zip(clients, rows.tolist(), most.tolist(), strict=True):
        if not 0 <= count <= limit:
            raise _unfit(field, f"{count} of {client}", f"0 to {limit}, as the place listed")


def _check_words(field: str, name: str, value: object, clients: Sequence[str]) -> None:
    """Check names, references and reasons, which are kept in runs/ and printed."""
    if isinstance(value, str) and not (len(value) <= 100 and value.isprintable()):
        raise _unfit(field, shown(repr(value), 60), "a word")
    if isinstance(value, tuple) and name != "clients" and {*value} - {*clients}:
        raise _unfit(field, shown(str(value), 60), "some of the message's clients")
    if name == "private" and isinstance(value, Mapping):
        for section, refs in value.items():
            if not is_plain(section):
                raise _unfit(field, shown(repr(section), 60), "a plain name of a section")
            _check_refs(field, refs, clients)
    elif name in ("refs", "outcomes") and isinstance(value, Mapping):
        _check_refs(field, value, clients)
    elif name == "validation" and isinstance(value, Mapping):
        _check_keys(field, value, clients)
    elif isinstance(value, Mapping):
        _check_keys(field, value, clients)
        for text in value.values():
            if not (isinstance(text, str) and len(text) <= _MOST_TEXT and text.isprintable()):
                raise _unfit(field, shown(repr(text), 60), f"text of at most {_MOST_TEXT} characters")


def _check_refs(field: str, refs: Mapping[str, str], clients: Sequence[str]) -> None:
    _check_keys(field, refs, clients)
    for ref in refs.values():
        if _REF.fullmatch(ref) is None:
            raise _unfit(field, shown(repr(ref), 60), "a hash and a row")


def _check_keys(field: str, value: Mapping[str, object], clients: Sequence[str]) -> None:
    if strangers := value.keys() - {*clients}:
        raise _unfit(field, shown(min(strangers), 60), "the message's clients")


def _tensors(value: object, key: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a field with their names."""
    if isinstance(value, Tensor):
        yield key, value
    elif isinstance(value, np.ndarray):
        yield key, torch.from_numpy(value)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _tensors(inner, name)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _tensors(inner, key)


def _unfit(field: str, got: str, expected: str) -> UserError:
    return UserError(
        f"{field}: got {got}, expected {expected}. Let the place's owner check its siloflow, or leave it out."
    )

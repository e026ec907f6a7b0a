"""A place's answer is believed if it is as the step makes it: clients, types, shapes, rows, finite numbers, references."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import pytest
import torch

from silos.client_store import ClientStore
from silos.errors import DivergedError, UserError
from tasks.messages.message_policy import Message, axes_of, numbers_of
from tasks.messages.score_messages import Scores
from tasks.remote.answer_steps import answer
from tasks.remote.place_workers import ask_place
from tasks.remote.step_list import client_steps, message_types, offered_functions, returned_by
from tests.tasks.remote.conftest import CLIENTS, calls


def test_each_field_of_numbers_of_each_step_declares_types_and_axes():
    kinds = {kind for step in client_steps() for kind in message_types(returned_by(step))}
    kinds |= {
        kind for evidence in offered_functions().values() for kind in message_types(get_type_hints(evidence)["return"])
    }
    kinds |= {inner for kind in kinds for inner in kind.__subclasses__() if inner.__module__.startswith("tasks.")}
    missing = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name in numbers_of(kind).keys() - axes_of(kind)
        if name != "validation"
    }
    assert missing == set()


@pytest.fixture
def lie(write_silos, separate) -> Any:
    """Asks place a for local training, and changes its one message on the way."""
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    args, usual = calls(apart.listed, ClientStore("/x/private/all/a/run"))[0]

    def changed(options: Mapping[str, Any] = {}, **changes: Any) -> list[Message]:
        given = {**usual, "keep": None, **options}

        def send(step: str, content: bytes) -> bytes:
            (message,) = ask_place({"a": apart.ask("a")}, step, args, given)
            made = {name: change(getattr(message, name)) for name, change in changes.items()}
            return answer(lambda: [replace(message, **made)])

        return ask_place({"a": send}, "local_train", args, given)

    return changed


def test_a_client_counts_once_in_what_a_place_answers(write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    args, options = calls(apart.listed, ClientStore("/x/private/all/a/run"))[0]
    options = {**options, "keep": None}

    def twice(step: str, content: bytes) -> bytes:
        messages = ask_place({"a": apart.ask("a")}, step, args, options)
        return answer(lambda: messages * 2)

    with pytest.raises(UserError, match=r"Update\.clients: got lyon, oslo again, expected each client in one message"):
        ask_place({"a": twice}, "local_train", args, options)


def of_first(change):
    """Change the first tensor of a mapping."""
    return lambda weights: {**weights, next(iter(weights)): change(next(iter(weights.values())))}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"sums": of_first(lambda w: w[:1])},
            r"Update\.sums of \S+: got the shape .*, expected the shape .* after 0 axes",
        ),
        ({"sums": of_first(lambda w: w.float())}, r"Update\.sums of \S+: got numbers of float32, expected float64"),
        (
            {"sums": lambda w: {**w, "other": torch.zeros(2).double()}},
            "sums of other: got the shape .*, expected a weight of",
        ),
        ({"each": lambda _: {"other": torch.zeros(2, 2)}}, "each of other: got the shape"),
        ({"loss": lambda loss: loss[:1]}, r"Update\.loss: got 1 on the axis clients, expected 2"),
        ({"loss": lambda loss: loss[:, None]}, r"Update\.loss: got 2 axes, expected 1: clients"),
        (
            {"rows": lambda rows: rows * 10**9},
            r"Update\.rows: got 7000000000 of lyon, expected 0 to 7, as the place listed",
        ),
        ({"rows": lambda rows: -rows}, r"Update\.rows: got -7 of lyon"),
        ({"clients": lambda _: ("lyon", "lyon")}, r"Update\.clients: got lyon, lyon, expected .* each once"),
        ({"clients": lambda _: ("lyon", "rome")}, r"Update\.clients: got lyon, rome"),
        ({"private": lambda _: {"../x": {}}}, "private: got '../x', expected a plain name"),
        ({"private": lambda _: {"own": {"lyon": "../../etc/passwd/0"}}}, "private: got .*, expected a hash and a row"),
        ({"private": lambda _: {"own": {"rome": "a"}}}, "private: got rome, expected the message's clients"),
    ],
)
def test_an_answer_that_is_not_as_the_step_makes_it_is_one_sentence(lie, changes, sentence):
    with pytest.raises(UserError, match=f"place a: local_train: .*{sentence}"):
        lie(**changes)


@pytest.mark.parametrize("name", ["sums", "loss"])
def test_an_update_that_is_not_finite_ends_the_run_as_one_that_diverged(lie, name):
    change = {"sums": of_first(lambda w: w * torch.nan), "loss": lambda loss: loss * torch.inf}[name]
    with pytest.raises(
        DivergedError, match=rf"place a: local_train: Update\.{name}.*: got a number that is not finite"
    ):
        lie(**{name: change})


def test_an_honest_answer_and_scores_that_are_not_defined_are_believed(lie):
    assert [message.clients for message in lie()] == [("lyon", "oslo")]
    assert not axes_of(Scores)["sums"].finite


def test_a_method_that_asks_for_each_clients_weights_decides_itself_which_count(lie):
    """A robust mean leaves out a client that diverged, and so do places."""
    change = of_first(lambda w: w * torch.nan)
    (message,) = lie(sums=change, options={"each": True})
    assert not all(bool(w.isfinite().all()) for w in message.sums.values())

"""What a round counts."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.round_context import RoundContext
from models.client_model import Model
from models.server_state import ClientStateRefs
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from tasks.execution.steps import ByClient, step
from tasks.execution.task_runner import Broadcast
from tasks.messages.message_policy import Message
from tasks.messages.round_messages import Update

NAMES = [f"c{i:02d}" for i in range(20)]


@pytest.fixture
def setup(make_problem):
    return make_problem(dict.fromkeys(NAMES, 2), silos={"validation": 0, "test": 1})


def test_a_rounds_silos_are_those_that_take_part(setup, make_round):
    assert make_round(setup, clients=NAMES[3:5]).silos.clients == tuple(NAMES[3:5])


def test_the_longest_cohort_counts_for_the_seconds(setup, make_round):
    """Cohorts run side by side: two workers' time is the slower one's, not the sum."""
    round = make_round(setup, workers=2)
    page = FedAvg()
    page.run_round(page.init(setup), round)
    assert set(round.tally.seconds) == {"local_train"}
    assert round.tally.seconds["local_train"] > 0


SEEN: list[tuple[Cohort, dict[str, Any]]] = []


@step
def looks(
    cohort: Cohort,
    model: Any,
    private: Any,
    device: str,
    shares: ByClient[str] | None = None,
    sections: Sequence[tuple[ClientStore, ByClient[str]]] = (),
    by_pool: ByClient[int] | None = None,
    **given: Any,
) -> list[Message]:
    SEEN.append((cohort, {**given, "shares": shares, "sections": sections, "by_pool": by_pool}))
    return [Message(cohort.clients)]


def given(round: RoundContext, silos: Silos | None = None, **options: Any) -> list[tuple[Cohort, dict[str, Any]]]:
    """What each cohort was given."""
    SEEN.clear()
    page = FedAvg()
    round.map_clients(looks, page.model(page.init(round.setup), round.setup), silos, **options)
    return list(SEEN)


def test_a_cohort_is_given_what_its_own_clients_hold_and_nothing_of_others(setup, make_round):
    """Also of clients that take no part. The types of the step say what is each client's own."""
    start, by_client = {"m": torch.ones(1)}, {c: f"{at}/0" for at, c in enumerate(NAMES)}
    model = Model(setup.network, {}, {"w": torch.arange(20.0)[:, None]}, ClientStateRefs("c", by_client), tuple(NAMES))
    one = ClientStore("nowhere")
    cohorts = given(
        make_round(setup, clients=NAMES[:9], workers=3, stack=3),
        kept=ClientStateRefs("kept", by_client, start),
        shares=MappingProxyType(by_client),
        sections=[(one, by_client)],
        deep={"models": (model, 3)},
        untyped=by_client,
        weights=start,
        names=NAMES,
    )
    assert [c for cohort, _ in cohorts for c in cohort.clients] == NAMES[:9]
    assert len(cohorts) == 3
    for cohort, options in cohorts:
        own = {c: by_client[c] for c in cohort.clients}
        assert options["kept"] == ClientStateRefs("kept", own, start)
        assert options["shares"] == own
        assert options["sections"] == [(one, own)]
        assert options["untyped"] == by_client
        theirs, three = options["deep"]["models"]
        assert (theirs.clients, theirs.context.refs, three) == (cohort.clients, own, 3)
        assert theirs.personal["w"][:, 0].tolist() == [NAMES.index(c) for c in cohort.clients]
        assert (options["weights"], options["names"]) == (start, NAMES)


def test_a_pooled_client_is_given_what_its_members_hold(setup, make_round):
    by_client = dict.fromkeys(NAMES, "a/0")
    silos = setup.silos.select(NAMES[:4]).pool()
    ((_, options),) = given(
        make_round(setup), silos, context=ClientStateRefs("s", by_client), by_pool={"+".join(NAMES[:4]): 1}
    )
    assert options["context"].refs == dict.fromkeys(NAMES[:4], "a/0")
    assert options["by_pool"] == {"+".join(NAMES[:4]): 1}


def test_what_clients_show_to_others_is_given_to_all(setup, make_round):
    lent = ClientStateRefs("words", dict.fromkeys(NAMES[:2], "a/0"))
    for _, options in given(make_round(setup, workers=2), setup.silos.select(NAMES[4:]), lent=Broadcast(lent)):
        assert options["lent"] is lent


@step
def says(cohort: Cohort, model: Any, private: Any, device: str, what: str = "", **when: Any) -> Any:
    rows, sums, loss = torch.ones(len(cohort.clients)), {}, torch.zeros(len(cohort.clients))
    whole = Update(cohort.clients, rows, sums, loss)
    answers = {
        "none": None,
        "nothing": [],
        "twice": [whole, whole],
        "others": [Update(("nobody",), rows[:1], sums, loss[:1])],
        "some": [Update(cohort.clients[:1], rows[:1], sums, loss[:1])],
    }
    return answers[what] if what != "shape" else [Update(cohort.clients, rows[:1], sums, loss)]


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("nothing", "says: got nothing from a client step, expected messages"),
        ("twice", r"says: got 2 results for client c0\d"),
        ("others", "says: got a message of 'nobody', expected one of a sampled client"),
        ("some", r"says: got 0 results for client c\d\d"),
        ("shape", "expected one number for each of"),
    ],
)
def test_a_step_that_does_not_answer_for_its_clients_is_told(what, match, setup, make_round):
    page = FedAvg()
    model = page.model(page.init(setup), setup)
    with pytest.raises((TypeError, ValueError), match=match):
        make_round(setup, stack=20).train(says, model, what=what)

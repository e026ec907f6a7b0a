"""Private training at places: the same bits as on one machine for the same secrets, and each place's own budget."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flows.methods.fedavg import FedAvg
from flows.methods.round_context import RoundContext
from flows.training.trainer import play_method_round
from models.networks.mlp import MLP
from models.training.engine import Privacy, SecureSums
from silos.cohort import Silos
from silos.errors import ClientsAwayError, RefusalError
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import OWNER_FILE
from silos.privacy.secret import Secret
from tasks.execution.task_runner import PlainRunner, map_clients
from tasks.privacy.record_answers import report_privacy_cost

CLIENTS = {"oslo": 24, "lyon": 31, "rome": 18}
PLACES = [["lyon", "oslo"], ["rome"]]


@pytest.fixture
def problem(make_problem, separate, stores, monkeypatch):
    """The problem cut into places, and a store on one machine whose clients have the secrets of those at places."""
    monkeypatch.setattr(Silos, "partition", "one")  # a place knows its own part only
    setup = make_problem(CLIENTS, network=MLP(5, (6,), 3), epochs=1, privacy=Privacy(0.5, 3.0, 20.0, 3))
    apart = separate(setup.silos, PLACES)
    for opened, clients in zip(apart.places.values(), PLACES, strict=True):
        for client in clients:
            there, here = (Ledger(str(folder), client)._home for folder in (opened.store, stores("here").folder))
            for home in (there, here):
                home.mkdir(parents=True)
            Secret.open(there / "secret")
            (here / "secret").write_bytes((there / "secret").read_bytes())
    return setup, apart


def _play(setup, runner, store):
    page, setup = FedAvg(), replace(setup, stack=2)
    state = page.init(setup)
    for number in (1, 2, 3):
        context = RoundContext(number, setup, setup.silos.clients, (), runner, store)
        state, _ = play_method_round(page, state, context)
    return state.sha256()


def test_places_give_the_bits_of_one_machine_for_the_same_secrets(problem, at_places, stores):
    setup, apart = problem
    here = _play(replace(setup, silos=apart.together), PlainRunner(), stores("here"))
    there = _play(replace(setup, silos=apart.listed), at_places(apart), stores("there"))
    assert there == here
    again = _play(replace(setup, silos=apart.listed), at_places(apart), stores("there"))
    assert again == here, "a repeated question gets the same bytes"
    costs = map_clients(
        at_places(apart),
        report_privacy_cost,
        apart.listed,
        stack=2,
        training=setup.training,
        private=stores("there"),
    )
    assert [float(cost) for message in costs for cost in message.spent] == pytest.approx([3 / (2 * 9)] * 3)


def test_secure_sums_at_places_give_the_bits_of_one_machine(problem, at_places, stores):
    setup, apart = problem
    training = replace(setup.training, privacy=Privacy(0.5, 3.0, 20.0, 3, SecureSums(0, 1)))
    setup = replace(setup, training=training)
    here = _play(replace(setup, silos=apart.together), PlainRunner(), stores("here"))
    for _ in range(2):  # a repeated sum gets the same bytes
        assert _play(replace(setup, silos=apart.listed), at_places(apart), stores("there")) == here


def test_a_place_that_leaves_a_secure_sum_is_left_out_of_it(problem, at_places, stores):
    """Place b stops after it sent its shares; two of three silos are enough for those at place a."""
    setup, apart = problem
    for place in apart.places.values():
        file = Path(place.store) / OWNER_FILE
        file.write_text(file.read_text().replace("colluders: 1 ", "colluders: 0 "))
    training = replace(setup.training, privacy=Privacy(0.5, 3.0, 20.0, 1, SecureSums(2, 0)))
    setup = replace(setup, training=training, silos=apart.listed, stack=2)
    runner, asked = at_places(apart), []

    def lose(task, calls):
        asked.append(task.name)
        answers = original(task, calls)
        if task.name == "mask_gradients":
            error = ClientsAwayError("b", 1.0)
            error.answers = [cohort for cohort in answers if "rome" not in cohort[0].clients]
            raise error
        return answers

    original = runner.map_cohorts
    context = RoundContext(1, setup, setup.silos.clients, (), Losing(lose=lose), stores("there"))
    page = FedAvg()
    state, _ = play_method_round(page, page.init(setup), context)
    assert asked == ["report_sum_keys", "seal_shares", "mask_gradients", "confirm_answered", "reveal_shares"]
    assert state.sha256() != page.init(setup).sha256()


@dataclass(frozen=True)
class Losing(PlainRunner):
    """Runs steps by a function that may lose answers."""

    lose: Callable = print

    def map_cohorts(self, task, calls):
        return self.lose(task, calls)


def test_a_place_refuses_what_its_owner_does_not_pay_for(problem, at_places, stores):
    setup, apart = problem
    file = Path(apart.places["b"].store) / OWNER_FILE
    file.write_text(file.read_text().replace("budget: 8.0 ", "budget: 0.1 "))
    with pytest.raises(RefusalError, match="client rome: got a query that costs epsilon"):
        _play(replace(setup, silos=apart.listed), at_places(apart), stores("there"))

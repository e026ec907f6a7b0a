"""A place that stops answering: its clients drop out of rounds with the bits of clients that drop out, and come back."""

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core.console import progress
from flows.core.plugin_loader import PluginFiles
from flows.methods.base import find_method
from flows.methods.client_sampler import FractionSampler, SampledClients, Sampler
from flows.training.run_context import RunClients
from flows.training.trainer import Trainer
from silos.client_store import ClientStore
from silos.cohort import Silos
from tasks.execution import task_runner
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.task_runner import PlainRunner
from tasks.local_train import local_train
from tasks.places.sessions import PlaceAwayError
from tasks.remote import place_workers
from tasks.remote.gather_parts import write_listing
from tasks.remote.place_workers import PlaceWorkers
from tasks.tracking.checkpoint import Checkpoint
from tests.tasks.remote.conftest import calls

pytestmark = pytest.mark.filterwarnings("ignore:Logger 'prefect.task_runs'")  # there is no flow around the steps

CLIENTS = {"oslo": 11, "lyon": 7, "one": 1, "same": 6, "rome": 9}
PLACES = [["lyon", "oslo", "one"], ["rome", "same"]]
BUNDLED = PluginFiles(Path()).load([])


@dataclass(frozen=True)
class Dropping(FractionSampler):
    """Samples all clients but those that drop out of a round."""

    dropped: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def sample(self, setup, round_number, memory):
        gone = self.dropped.get(round_number, ())
        return SampledClients(tuple(c for c in setup.silos.clients if c not in gone), gone)

    def draw(self, setup, clients, count, round_number, memory):
        return clients


@dataclass
class Run:
    """What the trainer reads of a run."""

    method: Any
    last: Checkpoint
    clients: RunClients
    sampler: Sampler
    least: int = 1

    @property
    def state(self):
        return self.last.state

    @property
    def number(self):
        return self.last.round

    @property
    def project(self):
        return SimpleNamespace(params=SimpleNamespace(clients=SimpleNamespace(least=self.least)))


@pytest.mark.parametrize(("method", "answered"), [("fedavg", 0), ("scaffold", 0), ("fedbn", 0), ("ifca", 1)])
def test_rounds_without_an_absent_place_have_the_bits_of_rounds_without_its_clients(
    method, answered, make_problem, separate, at_places, stores
):
    """Place b stops answering in round 2, after one step of two if the method has two, and is back in round 4."""
    page, setup = find_method(method, BUNDLED)(), make_problem(CLIENTS)
    apart, gone = separate(setup.silos, PLACES), ("rome", "same")

    def play(silos, runner, store, dropped):
        own = replace(setup, silos=silos, stack=2)
        run = Run(
            page, Checkpoint(page.init(own), 0, {}), RunClients(own, runner, store, None), Dropping(dropped=dropped)
        )
        for number in (1, 2, 3, 4):
            if number == 2:
                apart.away["b"] = answered
            if number == 4:
                apart.away.clear()
            yield Trainer(run, []).play_round().round.dropped
        yield run.state.sha256()

    there = [*play(apart.listed, at_places(apart), stores("there"), {})]
    here = [*play(apart.together, PlainRunner(), stores("here"), {2: gone, 3: gone})]
    assert there == here
    assert there[:4] == [(), gone, gone, ()]


def test_a_round_with_too_few_clients_waits_for_the_place_and_names_it(
    make_problem, separate, at_places, stores, monkeypatch
):
    page, setup, lines = find_method("fedavg", BUNDLED)(), make_problem(CLIENTS), []
    apart = separate(setup.silos, PLACES)

    class Screen(progress.ProgressSink):
        def say(self, line):
            lines.append(line)
            if "waits" in line:
                apart.away.clear()

    monkeypatch.setattr(task_runner, "WAIT_PAUSE", 0.01)
    apart.away["b"] = 0
    monkeypatch.setattr(progress, "_current", Screen())
    own = replace(setup, silos=apart.listed, stack=2)
    clients = RunClients(own, at_places(apart), stores("there"), None)
    run = Run(page, Checkpoint(page.init(own), 0, {}), clients, Dropping(), least=4)
    assert Trainer(run, []).play_round().round.dropped == ()
    assert lines == [
        "round 1 starts again without the clients of place b",
        "round 1 waits for place b: 3 clients of 5 answer, and clients.least is 4",
    ]


def test_a_place_that_does_not_answer_is_absent_until_it_is_back(federation, prefect, monkeypatch):
    monkeypatch.setattr(task_runner, "WAIT_PAUSE", 0.05)
    monkeypatch.setattr(place_workers, "_LONGEST_LOOK", 0.2)
    root, apart = federation
    write_listing(root, root / "data" / "all", "all", {}, root / "no")
    silos, lines = Silos.open(root / "data" / "all", "version"), []
    private = ClientStore(str(root / "private" / "all" / "set" / "run"))
    workers = PlaceWorkers(root, lines.append, 0.5)
    runner = PrefectRunner(workers)
    try:
        assert len(runner.map_cohorts(local_train, calls(silos, private))) == 2
        apart.away["b"] = 0
        time.sleep(0.1)  # its thread waits for a request
        with pytest.raises(PlaceAwayError, match="b: got no answer") as error:
            runner.map_cohorts(local_train, calls(silos, private))
        answers = [message.clients for cohort in error.value.answers for message in cohort]
        assert answers == [("lyon", "oslo")], "a secure sum goes on with them"
        assert workers.absent() == {"b"}
        began = time.monotonic()
        with pytest.raises(PlaceAwayError):  # without waiting for it again
            runner.map_cohorts(local_train, calls(silos, private))
        runner.keep(private, "own", ())
        assert time.monotonic() - began < 0.9  # two looks
        assert len(runner.map_cohorts(local_train, calls(silos, private)[:1])) == 1
        threading.Timer(0.3, apart.away.clear).start()
        sent = replace(runner, waits=True).map_cohorts(local_train, calls(silos, private))
        assert [message.clients for cohort in sent for message in cohort] == [("lyon", "oslo"), ("rome",)]
        assert workers.absent() == set()
    finally:
        workers.close()
    assert lines == [
        "place b is absent: no answer to local_train in 0.5 seconds",
        "local_train waits for place b, which does not answer",
        "place b answers again",
    ]

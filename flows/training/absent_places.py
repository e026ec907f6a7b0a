"""Leave clients beyond their budget, and those of places that do not answer, out of a round; or wait for the places."""

import time
from collections.abc import Collection
from dataclasses import replace

from flows.core.console import progress
from flows.core.console.process_control import raise_if_interrupted
from flows.methods.client_sampler import SampledClients
from flows.training.privacy_budget import clients_beyond
from flows.training.run_context import RunContext
from silos.cohort import Silos
from silos.errors import ClientsAwayError, counted, some
from tasks.execution import task_runner
from tasks.tracking.result_types.run_result import Note


def present_clients(run: RunContext, number: int, sampled: SampledClients, lost: set[str]) -> SampledClients:
    """Return the sampled clients without those beyond their budget and of absent places, which count as dropped out.

    Waits, and says so, while fewer of the sampled clients are there than `clients.least` and secure sums need.

    Args:
        run: The run.
        number: The round.
        sampled: Its clients.
        lost: Places that stopped answering within the round. They stay out of it, unless it has to wait.
    """
    setup, waits = run.clients.setup, False
    privacy, least, key = setup.training.privacy, run.project.params.clients.least, "clients.least"
    if privacy and privacy.secure and privacy.secure.least > least:
        least, key = privacy.secure.least, "training.privacy.least"
    sampled = _without(run, sampled, _beyond_budget(run))
    while away := lost | run.clients.runner.absent():
        gone = _clients_at(setup.silos.select(sampled.clients), away)
        kept = tuple(client for client in sampled.clients if client not in gone)
        if len(kept) >= min(least, len(sampled.clients)):
            return _without(run, sampled, gone)
        if not waits:
            progress.say(
                f"round {number} waits for {named(away)}: {counted(len(kept), 'client')} of {len(sampled.clients)} answer, "
                f"and {key} is {least}"
            )
        waits = True
        lost.clear()
        time.sleep(task_runner.WAIT_PAUSE)
        raise_if_interrupted()
    return sampled


def notes_of_budgets(run: RunContext) -> list[Note]:
    """Note the clients that the owners' budgets leave out of the run."""
    out = sorted(_beyond_budget(run))
    if not out:
        return []
    names = f"{'clients' if len(out) > 1 else 'client'} {some(out)}"
    return [
        {
            "about": "training",
            "sentence": f"{names} did not train: the run costs more than is left of the budget there",
        }
    ]


def _beyond_budget(run: RunContext) -> frozenset[str]:
    pays = run.clients.setup.training.privacy is not None and run.method.pays_as is not None
    return clients_beyond(run.folder.path.parent) if pays else frozenset()


def _without(run: RunContext, sampled: SampledClients, gone: Collection[str]) -> SampledClients:
    """Return the sampled clients after these drop out."""
    kept = tuple(client for client in sampled.clients if client not in gone)
    dropped = {*sampled.dropped, *sampled.clients} - {*kept}
    return replace(sampled, clients=kept, dropped=tuple(sorted(dropped, key=run.clients.setup.silos.index)))


def note_lost(run: RunContext, number: int, present: SampledClients, lost: set[str], error: ClientsAwayError) -> None:
    """Add the place of an error to those that a round lost; wait for it if the round needs clients that are not in it.

    Such clients leave for good, or belong to a method that asks others than those of the round.
    """
    place, runner = error.place, run.clients.runner
    if _clients_at(run.clients.setup.silos.select(present.clients), {place}):
        lost.add(place)
        progress.say(f"round {number} starts again without the clients of {named({place})}")
        return
    progress.say(f"round {number} waits for {named({place})}, which must answer before clients leave")
    while place in runner.absent():
        time.sleep(task_runner.WAIT_PAUSE)
        raise_if_interrupted()


def named(places: set[str] | frozenset[str]) -> str:
    """Return the names of places for a sentence."""
    return f"place {some(sorted(places))}"


def _clients_at(silos: Silos, places: set[str] | frozenset[str]) -> set[str]:
    if not silos.clients:
        return set()
    return {client for place, part in silos.by_place().items() if place in places for client in part.clients}

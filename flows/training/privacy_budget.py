"""Check the silos' budgets before training, leave out those that are beyond theirs, and say what a run spends."""

import math
from pathlib import Path

from flows.methods.base import Method, private_training_of
from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from models.privacy_accounting import epsilon
from models.training.engine import Privacy
from silos.client_store import ClientStore
from silos.errors import RefusalError, counted, some
from silos.param_limits import EPSILON
from silos.privacy.owner_file import policy_file
from silos.privacy.report_rules import round_down
from tasks.execution.task_runner import Runner, map_clients
from tasks.privacy.record_answers import cost_of_run, report_privacy_cost
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.run_result import Note

_SLACK = 1 + 1e-9  # of a budget, for rounding in sums


_DECIDED = "beyond_budget.json"
"""The file of a set of runs with the silos that drop out of all its rounds, so that a resumed run has the same silos."""


def clients_beyond(runs: Path) -> frozenset[str]:
    """Return the clients that the budgets of a set of runs, in this folder, leave out."""
    decided = read_json(runs / _DECIDED, keys=["clients"])
    return frozenset(decided["clients"]) if decided else frozenset()


def check_budgets(
    project: Project, setup: TrainingSetup, runner: Runner, private: ClientStore, answers: int, runs_in: Path
) -> str:
    """Return in words what answers in training will cost each silo; empty without privacy. Nothing is spent yet.

    Silos whose budget they exceed drop out of all rounds, if enough others are left.

    Args:
        project: The project; its params say which clients never train.
        setup: What the runs train with.
        runner: Where clients are reached.
        private: A private store of a run, or that of the silos.
        answers: The answers that each silo may give, such as rounds times runs.
        runs_in: The folder of the set of runs, which remembers the silos that drop out.

    Raises:
        RefusalError: If they exceed the budget of a silo, and a round may then have too few others, or who drops out was
            decided before.
    """
    privacy = setup.training.privacy
    if privacy is None or not answers:
        return ""
    leave = project.params.clients.leave
    is_decided, out = (runs_in / _DECIDED).exists(), clients_beyond(runs_in)
    silos = setup.silos.select([c for c in setup.silos.clients if leave.get(c) != 1 and c not in out])
    refusals: dict[str, RefusalError] = {}
    messages = map_clients(
        runner, report_privacy_cost, silos, stack=setup.stack, training=setup.training, private=private
    )
    each, tightest = cost_of_run(privacy, setup.training.epochs), (math.inf, "")
    for message in messages:
        columns = (message.spent, message.budget, message.delta, message.left)
        for client, *account in zip(message.clients, *(column.tolist() for column in columns), strict=True):
            spent, budget, delta, left = account
            # a run is paid for when it begins, so rounds that a started run has left are paid already
            runs = math.ceil(max(answers - left, 0) / privacy.rounds)
            total, most, before = (epsilon(rho, delta) for rho in (runs * each, budget, spent))
            plan = (
                f"{counted(runs, 'run')} that {'costs' if runs == 1 else 'cost'} epsilon {total:.3g} at delta {delta:g}"
            )
            of_budget = f"of a budget of {most:.3g}, {before:.3g} is spent"
            if runs and spent + runs * each > budget * _SLACK:  # a run that is paid for ends, also under a lower budget
                affordable = round_down(epsilon(max(budget - spent, 0.0) / runs, project.params.training.privacy.delta))
                lower = f"lower training.privacy.epsilon to {affordable:.4g}, " if affordable >= EPSILON else ""
                refusals[client] = RefusalError(
                    f"client {client}: training.privacy.epsilon: got a plan of {plan}, but {of_budget}. Train fewer methods "
                    f"or seeds, {lower}leave the client out (`--set 'clients.leave={{{client}: 1}}'`), or let its owner "
                    f"raise budget in {policy_file(Path(private.folder))}."
                )
                continue
            tightest = min(tightest, (budget - spent, f"at most {plan} for each silo; {of_budget} at {client}"))
    # all of them may be among the clients that a round draws
    drawn = max(1, round(project.params.clients.fraction * (len(silos.clients) + len(out))))
    left, fewest = drawn - len(refusals) - len(out), _fewest(project, privacy)
    if refusals and (is_decided or left < fewest):
        raise next(iter(refusals.values()))
    if out and left < fewest:
        raise RefusalError(
            f"clients.least: got {fewest} for a round of {drawn}, expected at most {left}, because {_beyond(out)}, was left "
            "out when these runs began. Lower it, or begin a new set of runs without --resume."
        )
    if not is_decided:
        out = frozenset(refusals)
        write_json(runs_in / _DECIDED, {"clients": sorted(out)})
    without = f"; without {_beyond(out)}, as if dropped out of all rounds" if out else ""
    return f"{tightest[1]}{without}"


def _beyond(clients: frozenset[str]) -> str:
    return f"{'clients' if len(clients) > 1 else 'client'} {some(sorted(clients))}, beyond the budget"


def _fewest(project: Project, privacy: Privacy) -> int:
    """Return the fewest silos without which a run is refused."""
    least = project.params.clients.least
    return max(least, privacy.secure.least, privacy.secure.colluders + 1, 2) if privacy.secure else least


def note_of_privacy(method: Method, setup: TrainingSetup, target: float | None, delta: float) -> list[Note]:
    """Say what guarantee a run has; nothing without training.privacy."""
    if setup.training.privacy is None or target is None:
        return []
    guarantee = f"epsilon {target:g} at delta {delta:g} in each run"
    secure = setup.training.privacy.secure
    sent = f"what silos send of their training rows has {guarantee}"
    if secure is not None and not method.pools_rows:
        helpers = f"if no more than {counted(secure.colluders, 'silo')} of a sum can help it"
        sent = f"what the server reads of training rows, sums over silos alone, has {guarantee}, {helpers}"
    kept = "trained without noise and stay at their silos, and their scores have no guarantee"
    if method.pays_as is None:
        sentence = f"all weights are {kept}"
    elif private_training_of(type(method)) == "kept":
        sentence = f"{sent}, but for scores: silos' own weights are {kept}"
    else:
        sentence = sent
    return [{"about": "training", "sentence": f"{sentence}: docs/privacy.md"}]

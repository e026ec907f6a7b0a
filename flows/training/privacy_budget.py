"""Ask silos before training whether their budgets pay for it, and say what a run spends."""

import math

from flows.methods.base import Method
from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from models.privacy_accounting import epsilon
from silos.client_store import ClientStore
from silos.errors import RefusalError, counted
from tasks.answer_privately import cost_of_run, report_privacy_cost
from tasks.execution.task_runner import Runner, map_clients
from tasks.tracking.result_types.run_result import Note

_SLACK = 1 + 1e-9  # of a budget, for rounding in sums


def check_budgets(project: Project, setup: TrainingSetup, runner: Runner, private: ClientStore, answers: int) -> str:
    """Return in words what answers in training will cost each silo; empty without privacy. Nothing is spent yet.

    Args:
        project: The project, whose params say which clients never train.
        setup: What the runs train with.
        runner: Where clients are reached.
        private: A private store of a run, or that of the silos.
        answers: The answers that each silo may give, such as rounds times runs.

    Raises:
        RefusalError: If they exceed the budget of a silo.
    """
    privacy = setup.training.privacy
    if privacy is None or not answers:
        return ""
    leave = project.params.clients.leave
    silos = setup.silos.select([client for client in setup.silos.clients if leave.get(client) != 1])
    messages = map_clients(
        runner, report_privacy_cost, silos, stack=setup.stack, training=setup.training, private=private
    )
    each, said = cost_of_run(privacy, setup.training.epochs), ""
    for message in messages:
        columns = (message.spent, message.budget, message.delta, message.left)
        for client, *account in zip(message.clients, *(column.tolist() for column in columns), strict=True):
            spent, budget, delta, left = account
            runs = math.ceil(max(answers - left, 0) / privacy.rounds)
            total, most, before = (epsilon(rho, delta) for rho in (runs * each, budget, spent))
            of_budget = f"of a budget of {most:.3g}, {before:.3g} is spent"
            said = said or f"{counted(runs, 'run')} will cost each silo epsilon {total:.3g}; {of_budget}"
            if spent + runs * each > budget * _SLACK:
                lower = epsilon(max(budget - spent, 0.0) / runs, delta)
                raise RefusalError(
                    f"training.privacy.epsilon: {counted(runs, 'run')} would cost client {client} epsilon {total:.3g}, but "
                    f"{of_budget}. Lower training.privacy.epsilon to {lower:.2g}, train fewer methods or seeds, leave the "
                    f"client out (`--set 'clients.leave={{{client}: 1}}'`), or let its owner raise budget in owner.yaml."
                )
    return said


def note_of_privacy(method: Method, setup: TrainingSetup, target: float | None, delta: float) -> list[Note]:
    """Say what guarantee a run has; nothing without training.privacy."""
    if setup.training.privacy is None or target is None:
        return []
    kept = vars(type(method)).get("private_training") == "kept"
    sentence = f"what a silo sends of its training rows has epsilon {target:g} at delta {delta:g} in each run"
    more = "; weights that a silo keeps are trained without noise, and their scores have no guarantee" if kept else ""
    return [{"about": "training", "sentence": f"{sentence}{more}: docs/privacy.md"}]

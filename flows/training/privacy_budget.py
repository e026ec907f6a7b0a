"""Ask silos before training whether their budgets pay for it, and say what a run spends."""

from flows.methods.base import Method
from flows.methods.round_context import TrainingSetup
from models.diagnosis.client_summaries.gaussian_mechanism import epsilon
from silos.client_store import ClientStore
from silos.errors import RefusalError, counted
from tasks.execution.task_runner import Runner, map_clients
from tasks.messages.statistics_messages import PrivacyCost, Refusal
from tasks.private_training import cost_of_run, report_privacy_cost
from tasks.tracking.result_types.run_result import Note


def check_budgets(setup: TrainingSetup, runner: Runner, private: ClientStore, runs: int = 1) -> None:
    """Raise RefusalError if the budget of a silo does not pay for runs with training.privacy; nothing is spent.

    Args:
        setup: What the runs train with; nothing is checked without privacy.
        runner: Where clients are reached.
        private: A private store of a run, or that of the silos.
        runs: The number of runs that may spend.
    """
    privacy = setup.training.privacy
    if privacy is None or not runs:
        return
    messages = map_clients(
        runner, report_privacy_cost, setup.silos, stack=setup.stack, training=setup.training, private=private
    )
    refused = {
        client: why for message in messages if isinstance(message, Refusal) for client, why in message.why.items()
    }
    if refused:
        first, why = next(iter(refused.items()))
        more = f" So do {len(refused) - 1} more." if len(refused) > 1 else ""
        raise RefusalError(f"{why}{more} To train without {first}: `--set 'clients.leave={{{first}: 1}}'`.")
    cost = runs * cost_of_run(privacy, setup.training.epochs)
    for message in messages:
        assert isinstance(message, PrivacyCost), "refusals are raised above"
        parts = (message.spent.tolist(), message.budget.tolist(), message.delta.tolist())
        for client, spent, budget, delta in zip(message.clients, *parts, strict=True):
            if spent + cost > budget * (1 + 1e-9):
                total, most, before = (epsilon(part, delta) for part in (cost, budget, spent))
                each = epsilon(max(budget - spent, 0.0) / runs, delta)
                raise RefusalError(
                    f"training.privacy.epsilon: {counted(runs, 'run')} cost each silo epsilon {total:.3g} together, but "
                    f"client {client} has a budget of {most:.3g}, of which {before:.3g} is spent. Lower training.privacy."
                    f"epsilon to {each:.2g}, train fewer methods or seeds, or let the owner raise budget in its owner.yaml."
                )


def note_of_privacy(method: Method, setup: TrainingSetup, target: float | None, delta: float) -> list[Note]:
    """Say what guarantee a run has; nothing without training.privacy."""
    if setup.training.privacy is None or target is None:
        return []
    kept = vars(type(method)).get("private_training") == "kept"
    sentence = f"what a silo sends of its training rows has epsilon {target:g} at delta {delta:g} in each run"
    more = "; weights that a silo keeps are trained without noise, and their scores have no guarantee" if kept else ""
    return [{"about": "training", "sentence": f"{sentence}{more}: docs/privacy.md"}]

"""Evaluates the models of a method at every client. Evaluation tasks add no bytes to the traffic of training."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from flows.core.config.params_schema import EvaluationParams
from flows.methods.base import Method
from flows.methods.round_context import RoundContext
from flows.project.project import Project
from flows.training.paired_runs import prior_shift_by_client
from flows.training.run_records.round_record import mean_uncertainty, metric_by_client, metrics_of
from flows.training.run_records.run_folder import RunFolder
from models.client_model import Model
from models.metrics.client_metrics import CLIENT_METRICS, ClientMetric
from models.metrics.task_metrics import TaskMetrics
from models.server_state import ServerState
from silos.cohort import Silos
from silos.plugin_registry import bind_options
from silos.standardizer import NO_STANDARDIZATION, Standardization
from tasks.evaluate import NONE, ClientMetrics, evaluate
from tasks.execution.task_runner import RoundCost
from tasks.messages.score_messages import Scores
from tasks.tracking.json_io import write_json
from tasks.tracking.result_tables import by_client
from tasks.tracking.result_types.run_files import ValidationRecord
from tasks.tracking.result_types.run_result import RunMetrics
from tasks.uncertainty_check import uncertainty_check

SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Scorer:
    """Evaluates the models of one method at the clients of a run.

    Attributes:
        method: The method that trains the models.
        silos: All clients of the data, of any role, with rows as the run's clients standardise them.
        scored: The clients that models are scored on: all, or `evaluation.clients` of each role.
        quantity: The metric that params choose.
        params: The section `evaluation` of params.yaml.
    """

    method: Method
    silos: Silos
    scored: Silos
    quantity: TaskMetrics
    params: EvaluationParams

    @classmethod
    def of(cls, project: Project, method: Method, scaling: Standardization = NO_STANDARDIZATION) -> Self:
        """Return the scorer of a run whose clients agreed on this standardization."""
        silos, scored = (replace(each, scaling=scaling) for each in (project.silos, project.scored))
        return cls(method, silos, scored, project.quantity, project.params.evaluation)

    def model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the model of every client, of any role, that has one: also of those that take no part or are not scored.

        The tasks that this may run cost seconds like the tasks of the round. Their messages are no traffic of training.
        """
        return self.method.scored_model(state, self._for_all_clients(round))

    def score(
        self,
        model: Model,
        round: RoundContext,
        keep_outcomes: bool = False,
        final: bool = False,
        splits: tuple[str, ...] = SPLITS,
    ) -> list[Scores]:
        """Score the scored clients of the model; a shared model on common rows is scored once for all of them.

        The `final` scores have all metrics of the task.
        """
        model = self._select(model)
        silos = self.silos.select(model.clients)
        shared_splits = tuple(s for s in splits if silos.common(s) and not model.is_personal)
        options: dict[str, Any] = {"training": round.setup.training, "keep_outcomes": keep_outcomes}
        if row_metrics := row_metrics_of(self.params):
            options["metrics"] = row_metrics
        of_clients = client_metrics(self.quantity, final)
        if of_clients != NONE:
            options["client_metrics"] = of_clients
        scores: list[Scores] = []
        if len(shared_splits) < len(splits):
            other_splits = tuple(s for s in splits if s not in shared_splits)
            scores += round.map_clients(evaluate, model, silos=silos, splits=other_splits, **options)
        if shared_splits:
            first = silos.select(silos.clients[:1])
            messages = round.map_clients(evaluate, model, silos=first, splits=shared_splits, **options)
            scores += [score.for_all(silos.clients) for score in messages]
        return scores

    def score_other_models(self, state: ServerState, round: RoundContext) -> dict[str, float]:
        """Return the metrics of the method's other models, with the model's name as prefix: `own/accuracy/mean`."""
        metrics: dict[str, float] = {}
        for name, model in self.method.other_models(state, self._for_all_clients(round)).items():
            scored = by_client(self.score(model, round), self.quantity)
            metrics |= {f"{name}/{k}": v for k, v in metrics_of(scored, self.silos, self.quantity).items()}
        return metrics

    def final_scores(
        self, model: Model, round: RoundContext, folder: RunFolder
    ) -> tuple[RunMetrics, dict[str, dict[str, float]]]:
        """Return a run's metrics and the uncertainty of each client.

        Every client stores its outcomes; their hashes are written to the run's folder.
        """
        scored, quantity = self.scored, self.quantity
        scores = self.score(model, round, keep_outcomes=True, final=True)
        others = other_metrics(quantity)
        write_json(folder.outcomes, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()})
        table, uncertainty = by_client(scores, quantity.with_metrics((), others)), self._uncertainty(model, round)
        metrics: RunMetrics = {
            **metrics_of(table, scored, quantity, others),
            **mean_uncertainty(uncertainty, scored),
            **self._prior_shift_mean(scores, round),
        }
        metrics[f"{quantity.name}/by_client"] = metric_by_client(table, scored, quantity)
        return metrics, uncertainty

    def write_validation(self, model: Model, round: RoundContext, folder: RunFolder, number: int) -> None:
        """Score the validation rows; every client stores its outcomes, and their hashes and the score are written.

        Args:
            model: The model of the clients.
            round: The context that tasks run in.
            folder: The run's folder.
            number: The rounds that were played.
        """
        scores = self.score(model, round, keep_outcomes=True, splits=("validation",))
        record: ValidationRecord = {
            "round": number,
            "metrics": {**metrics_of(by_client(scores, self.quantity), self.scored, self.quantity)},
            "outcomes": {client: ref for s in scores for client, ref in s.outcomes.items()},
        }
        write_json(folder.validation, record)

    def _select(self, model: Model) -> Model:
        """Select the clients that are scored: all clients of the model, unless some of the data are not scored."""
        if len(self.scored.clients) == len(self.silos.clients):
            return model
        return model.select(self.method.silos_with_a_model(self.scored).clients)

    def _for_all_clients(self, round: RoundContext) -> RoundContext:
        silos = self.method.silos_with_a_model(self.silos)
        setup, tally = replace(round.setup, silos=silos), RoundCost(round.tally.seconds)
        return replace(round, setup=setup, clients=silos.clients, dropped=(), tally=tally, validation=None)

    def _uncertainty(self, model: Model, round: RoundContext) -> dict[str, dict[str, float]]:
        """Map each client to its `uncertainty_check` metrics on test rows; empty for a regression, or without test rows."""
        if self.quantity.task != "classification":
            return {}
        model = self._select(model)
        silos = self.silos.select(model.clients)
        checked = silos.select(silos.clients[:1]) if silos.common("test") and not model.is_personal else silos
        options: dict[str, Any] = {**round.training_arguments, "passes": self.params.passes, "refuse": False}
        uncertainty: dict[str, dict[str, float]] = {}
        for message in round.map_clients(uncertainty_check, model, silos=checked, split="test", **options):
            for index, client in enumerate(message.clients):
                if message.rows[index]:
                    values = {name: float(value[index]) for name, value in message.numbers.items()}
                    uncertainty[client] = {name: value for name, value in values.items() if math.isfinite(value)}
        if checked is silos:
            return uncertainty
        return {client: dict(uncertainty[checked.clients[0]]) for client in silos.clients}

    def _prior_shift_mean(self, scores: list[Scores], round: RoundContext) -> dict[str, float]:
        """Average the accuracy on common test rows over federated clients, each weighted by its class shares.

        Empty unless the task is a classification with common test rows, and with training.privacy: class shares are exact.
        """
        refs = {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}
        silos = self.scored.federated()
        silos = silos.select([client for client in silos.clients if client in refs])
        if not silos.common("test") or self.quantity.task != "classification" or round.setup.training.privacy:
            return {}
        values = prior_shift_by_client(round.runner, silos, (round.private, refs)).values()
        return {"accuracy/own_law": math.fsum(values) / len(values)} if values else {}


def row_metrics_of(params: EvaluationParams) -> dict[str, Callable[..., Any]]:
    """Return the plugin metrics of rows that params name: each maps logits and y to a value for each row."""
    return {s.kind: bind_options(s) for s in params.metrics if not isinstance(s.entry.target, type)}


def client_metrics(quantity: TaskMetrics, final: bool) -> ClientMetrics:
    """Return the metrics that clients compute of their rows; all of the task if they are `final`."""
    others = other_metrics(quantity) if final else ()
    every = (metric for metric in (quantity, *quantity.reported, *others) if isinstance(metric, ClientMetric))
    return ClientMetrics(tuple(every), quantity if isinstance(quantity, ClientMetric) else None)


def other_metrics(quantity: TaskMetrics) -> tuple[ClientMetric, ...]:
    """Return the metrics of the task that only the final model is scored by."""
    known = {quantity.name, *(metric.name for metric in quantity.reported)}
    return tuple(m for m in CLIENT_METRICS.values() if m.task == quantity.task and m.name not in known)

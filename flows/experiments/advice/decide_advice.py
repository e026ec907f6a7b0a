"""Decide what to advise from a race and its proof, with the settings and the reasons."""

from collections.abc import Mapping, Sequence

from flows.experiments.advice.advice_text import advice_lines
from flows.experiments.advice.choose_method import choose
from flows.experiments.advice.exclude_silos import leave_setting
from flows.experiments.advice.proof import Cost, Proof
from models.metrics.task_metrics import TaskMetrics
from tasks.tracking.result_types.advice_result import AdviceDecision
from tasks.tracking.result_types.comparison_result import ComparisonConclusions


def decide(
    quantity: TaskMetrics,
    choice: str,
    settings: Mapping[str, Sequence[str]],
    proof: Proof,
    comparison: ComparisonConclusions,
    leave: Mapping[str, int] | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> AdviceDecision:
    """Return the advice; `train_alone` names the silos that should not take part in FedAvg.

    Args:
        quantity: The metric.
        choice: The method that won the race.
        settings: The settings that each proved method was given.
        proof: What the proof measured.
        comparison: What the comparison of the proof's runs concludes.
        leave: `clients.leave` of params.yaml; None if no client leaves.
        costs: What a run of each proved method costs; None if that is not known.
    """
    chosen, costs = choose(quantity, choice, proof, comparison), costs or {}
    # silos leave by a setting, so that applying the advice is writing settings
    leaving = [leave_setting(leave or {}, chosen.outside)] if chosen.outside else []
    given = [*settings.get(chosen.advised, ()), *leaving]
    return {
        "choice": choice,
        "advised": chosen.advised,
        "settings": given,
        "train_alone": chosen.outside,
        "differences": [
            {"first": a, "second": b, "difference": d.mean, "low": d.low, "high": d.high}
            for (a, b), d in proof.differences.items()
        ],
        "costs": {method: cost.as_json() for method, cost in costs.items()},
        "lines": advice_lines(chosen, quantity, given, settings, proof, comparison, costs),
    }

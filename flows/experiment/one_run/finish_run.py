"""The end of a run: the reported model is scored once more, and the run's result is put together."""

from typing import Any

from flows.experiment.baseline import baseline
from flows.experiment.calls.sampling import Called
from flows.experiment.evaluation import for_scored, last_scores, scored_model, scores_of_others
from flows.experiment.one_run.mlflow_run import finish
from flows.experiment.one_run.records import means_of, seconds_of, totals_of
from flows.experiment.one_run.run_context import RunContext
from flows.experiment.scaling.run_notes import notes_of_best, notes_of_training
from flows.experiment.scene import Scene, drawn
from models.networks.registry import to_learn
from tasks.recording.checkpoint import Checkpoint


def finish_run(run: RunContext) -> None:
    """Score the reported model, let each client keep its outcomes, and draw the method's figures.

    Sets `run.artifacts`, and `run.result` but for the id of the MLflow run and the seconds in total.
    """
    project, method, folder, last = run.project, run.method, run.folder, run.number
    quantity, silos = project.quantity, project.silos
    rounds, state, reported = folder.rounds(last), run.state, last
    if project.params.evaluation.report == "best":
        state, reported, _ = folder.the_best(last, quantity) or Checkpoint(state, last, {})
    round = run.round(reported, Called(run.problem.silos.clients), "result")
    model = scored_model(method, silos, state, round)
    metrics, doubts = last_scores(project, for_scored(project, method, model), round, folder)
    metrics |= scores_of_others(project, method, state, round)
    result: dict[str, Any] = {
        "method": run.method_name,
        "seed": run.problem.seed,
        "model": method.tested_model,
        "task": silos.manifest.task,
        "data_version": run.problem.silos.version,
        "rounds": last,
        "reported_round": reported,
        "ended_by": state.finished or run.stop_reason or "training.rounds",
        "resumed_from_round": run.resumed_from,
        **totals_of(rounds),
        "parameters": to_learn(model.network),
        "metrics": metrics,
        "baseline": baseline(project),
        "doubts": doubts,
        "notes": [
            *run.notes,
            *notes_of_training(folder, last, metrics, quantity),
            *notes_of_best(folder, reported, last, quantity),
        ],
        "weights_sha256": state.sha256(),
        "folder": str(folder.path.relative_to(project.root)),
        "mlflow_run_id": None,
        "seconds": seconds_of(rounds),
    }
    means = means_of(doubts, silos)
    final = {"round": reported, "time_ms": rounds[-1]["time_ms"], "metrics": means}
    each, personal = folder.journal.each, project.params.tracking.personal_models
    scene = Scene(folder.path, model, silos, round, rounds, lambda: each(last), quantity, personal)
    figures = drawn(method.pictures(), scene)
    run.artifacts = finish(project, method, run.problem, run.private, model, folder, result, final, figures)
    run.result = result

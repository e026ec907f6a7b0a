"""Callbacks that score a round, keep the best one, and end training early."""

from collections.abc import Callable
from dataclasses import dataclass, field

from flows.experiment.callbacks.callback import Callback, PlayedRound
from flows.experiment.evaluation import for_scored, scored_model, scores_of, scores_of_others
from flows.experiment.run.round_record import round_record
from flows.experiment.run.run_context import RunContext
from flows.experiment.run.run_folder import NO_RANK
from tasks.messages.score_messages import Scores


class StandardizerTraffic(Callback):
    """Count the bytes of the agreement on a standardization among those of the first round."""

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        if run.number == 1:
            run.agreement.count(played.round.tally)


@dataclass
class Evaluation(Callback):
    """Fill the record of every round, and score every `every`-th round and the last one.

    `settle` waits until the round before is on disk. Scoring may take long, and the user waits to read of that round.
    """

    every: int
    settle: Callable[[], None]

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        project, method, round = run.project, run.method, played.round
        is_scored = bool(run.ended_by) or run.number % self.every == 0
        scores: list[Scores] = []
        if is_scored:
            self.settle()
            model = scored_model(method, project.silos, run.state, round)
            scores = scores_of(project, for_scored(project, method, model), round)
        played.record.update(round_record(round, played.report, scores, project.silos, project.quantity))
        if is_scored:
            played.record["metrics"] |= scores_of_others(project, method, run.state, round)


@dataclass
class BestModel(Callback):
    """Save the state of the round with the best score on validation rows, before that round is on disk."""

    rank: tuple[float, float] = field(default=NO_RANK, init=False)

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        self.rank, run.best_round = run.folder.best_round(run.number, run.project.quantity)

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        rank = run.project.quantity.rank(played.record["metrics"], "validation/")
        if rank > self.rank:
            self.rank, run.best_round = rank, run.number
            run.folder.save_best(run.state, run.number)


@dataclass
class EarlyStopping(Callback):
    """End training after the first round whose score reaches `stop_at`."""

    stop_at: float

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        if run.number > 0:
            self._stop(run, run.folder.journal.read(run.number)["metrics"])

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        self._stop(run, played.record["metrics"])

    def _stop(self, run: RunContext, metrics: dict[str, float]) -> None:
        if run.project.quantity.reaches(metrics, self.stop_at):
            run.stop_reason = "evaluation.stop_at"

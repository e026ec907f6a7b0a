"""The one list of callbacks that surround the rounds of every run."""

from collections.abc import Sequence

from flows.experiment.callbacks.callback import Callback, UserCallback
from flows.experiment.callbacks.report_run import FinalEvaluation, MLflowTracking, Progress, ResultFile, RunNotes
from flows.experiment.callbacks.save_rounds import ClientStateCleanup, MemoryUse, RoundSaver
from flows.experiment.callbacks.score_rounds import BestModel, EarlyStopping, Evaluation, StandardizerTraffic
from flows.params import EvaluationParams


def default_callbacks(params: EvaluationParams, extra: Sequence[UserCallback] = ()) -> list[Callback]:
    """Return the callbacks of a run; their order promises that what is reported is on disk.

    1. A round is scored, its best state is saved and its record is complete, before `RoundSaver` writes it.
    2. `RoundSaver` writes the journal, then the checkpoint. After that the round counts, and `after_commit` is called:
       MLflow first, then the screen, then the user's callbacks.
    3. `ClientStateCleanup` deletes what no round on disk refers to, so it follows `RoundSaver`.
    4. At the end the reported model is scored, MLflow receives it, result.json is written, and the screen shows it.
    5. On an error `RoundSaver` finishes the file that it writes, before MLflow is marked.

    Args:
        params: The section `evaluation` of params.yaml.
        extra: The user's callbacks: each hook is called after the hooks of all others.
    """
    saver = RoundSaver()
    return [
        StandardizerTraffic(),
        Evaluation(params.every, saver.settle),
        *([BestModel()] if params.report == "best" else []),
        *([EarlyStopping(params.stop_at)] if params.stop_at is not None else []),
        MemoryUse(),
        saver,
        ClientStateCleanup(saver),
        FinalEvaluation(),
        MLflowTracking(),
        ResultFile(),
        Progress(),
        RunNotes(),
        *extra,
    ]

"""Finds by hashes whether a silo changed since the champion was trained; where means are filled in, by its own rows.

Neither torch nor Prefect is imported, and MLflow only if its database has changed, so a look takes little time.
"""

from dataclasses import asdict

from flows.project.project import Project
from flows.results.registry import FOLDER, JOURNAL, promotion_history
from flows.results.registry.model_finder import ModelFinder, model_name
from flows.results.registry.promotion_history import decisions, may_pass
from silos.errors import UserError
from silos.versioning import data_versions
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.mlflow_logging.connection import database_stamp
from tasks.tracking.mlflow_logging.model_registry import ModelVersion
from tasks.tracking.result_types.registry_records import (
    Decision,
    WatchAnswer,
    WatchedState,
    WatchOutcome,
)

_CHAMPION = FOLDER / "champion.json"
"""The champion at the last look, with the state of MLflow's database in which it was read."""


def look(project: Project) -> WatchAnswer | None:
    """Return the answer if there is nothing to do, after a look at hashes, and at rows where means are filled in.

    None if silos may have changed.

    Raises:
        UserError: If there is no champion, or if MLflow does not answer.
    """
    champion = read_champion(project)
    is_open = (project.root / JOURNAL).is_file() or promotion_history.is_queued(project.root)
    has_work = is_open or project.data.is_source_changed()
    return None if has_work else settled_answer(project, champion)


def read_champion(project: Project) -> ModelVersion:
    """Return the champion, from the last look if MLflow's database is unchanged, since importing MLflow takes seconds.

    Raises:
        UserError: If there is no champion, or if siloflow did not register it.
    """
    stamp, file = database_stamp(project.store.tracking), project.root / _CHAMPION
    read_in = {"model": model_name(project), "stamp": stamp}
    saved = read_json(file, keys=("read_in", "champion"))
    if stamp is not None and saved is not None and saved["read_in"] == read_in:
        return ModelVersion(**saved["champion"])
    finder = ModelFinder(project)  # which corrects the database of a project that was moved
    read_in["stamp"] = database_stamp(project.store.tracking)
    champion = finder.find_champion()
    if champion is None:
        raise UserError(
            "watch: got no champion, expected one whose data can be compared. Run `siloflow compare`, then `siloflow "
            "promote`."
        )
    missing = [key for key in ("method", "data_version") if not champion.tags.get(key)]
    if missing:
        raise UserError(
            f"watch: got the champion {champion.number} without the tag {missing[0]}, expected one that siloflow "
            "registered. Promote another with `siloflow promote RUN`."
        )
    if stamp is not None:
        write_json(file, {"read_in": read_in, "champion": asdict(champion)})
    return champion


def settled_answer(project: Project, champion: ModelVersion) -> WatchAnswer | None:
    """Return the answer if no silo changed since the champion's data version, or if that change was judged before.

    None if there is something to do, also if the reason of the last refusal may have passed.
    """
    with project.data.working("watch"):
        judged = last_decision(project, champion)
        if judged is not None:
            if may_pass(judged):
                return None
            at = judged["at"][:16].replace("T", " ")
            sentence = f"No silo has changed since {at} UTC; then: {judged['decision']}, since {judged['reason']}."
            return make_answer("unchanged", sentence, champion)
        if not changed_silos(project, champion):
            return make_answer(
                "unchanged", f"No silo has changed since champion {champion.number} was trained.", champion
            )
        return None


def last_decision(project: Project, champion: ModelVersion) -> Decision | None:
    """Return the newest decision about this model on what is seen now."""
    seen, model = what_is_seen(project, champion), model_name(project)
    of_model = (decision for decision in decisions(project.root) if decision["model"] == model)
    return next((d for d in of_model if "watch" in d and d["watch"]["seen"] == seen), None)


def what_is_seen(project: Project, champion: ModelVersion) -> WatchedState:
    """Return what a decision depends on; `watch` decides once for equal values."""
    settings = project.params.watch.model_dump(mode="json")
    return {"champion": champion.number, "data_version": project.silos.version, "settings": settings}


def changed_silos(project: Project, champion: ModelVersion) -> dict[str, str]:
    """Map each silo that differs from the champion's data version to added, removed or changed."""
    since = data_versions.find_digest(project.root, champion.tags["data_version"])
    if project.data.same_rows(since, project.silos.version):
        return {}
    return data_versions.changed_silos(project.root, project.params.data.name, since, project.silos.version)


def make_answer(outcome: WatchOutcome, sentence: str, champion: ModelVersion | None = None) -> WatchAnswer:
    """Return an answer of `watch` without a decision.

    Args:
        outcome: `busy`, `unchanged`, or what was decided.
        sentence: The answer in words.
        champion: The champion, if it is known.
    """
    return {
        "outcome": outcome,
        "sentence": sentence,
        "champion": None if champion is None else champion.number,
        "changed": {},
        "shifted": [],
        "unchecked": {},
        "unseen": [],
        "diagnosis": None,
        "comparison": None,
        "decision": None,
    }

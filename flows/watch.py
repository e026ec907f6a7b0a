"""Defines the flow `watch`: it finds silos that changed since the champion was trained, and trains again if it matters."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, TypedDict, get_args
from urllib.parse import quote
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect.events import emit_event
from pydantic import WithJsonSchema

from flows.compare import check_resume, compare, make_plan
from flows.core.config.params_schema import WatchParams
from flows.core.console import progress
from flows.diagnose import diagnose
from flows.orchestration.flow_decorator import MethodNames, from_overrides, one_of, project_flow
from flows.project.make_partition import make
from flows.project.project import Project
from flows.results.registry import FOLDER, changed_silos, promotion_history
from flows.results.registry.promotion import finish, keep, promote
from flows.results.registry.shifted_silos import shifted_silos, unchecked_silos, unseen_shifts
from flows.results.registry.watch_text import NAMED, no_shift_text, shift_text, unchecked_text
from flows.results.run_history.clean_runs import enforce_retention
from models.diagnosis.name_shift_types import GRADES
from silos.errors import UserError, some
from silos.io.locks import exclusive_lock
from tasks.execution.prefect_failure import ignore_prefect_failure
from tasks.tracking import prefect_artifacts
from tasks.tracking.metric_names import as_markdown
from tasks.tracking.mlflow_logging.model_registry import ModelVersion
from tasks.tracking.result_types.comparison_result import FailedRun
from tasks.tracking.result_types.diagnosis_records import Grades
from tasks.tracking.result_types.diagnosis_result import VersionResult
from tasks.tracking.result_types.registry_records import Decision, ShiftedSilo, WatchAnswer, WatchSaw

SHIFTED = "siloflow.silo.shifted"
"""The event of a silo that shifted. Triggers may expect it, and `PROMOTED` of promotion_history.py."""

Grade = Annotated[str | None, WithJsonSchema(one_of("", *get_args(WatchParams.model_fields["grade"].annotation)))]
Preference = Annotated[str | None, WithJsonSchema(one_of("", *get_args(WatchParams.model_fields["prefer"].annotation)))]


@project_flow(run_name="watch")
def watch(
    methods: MethodNames = (), grade: Grade = "", prefer: Preference = "", project: Project = from_overrides()
) -> WatchAnswer:
    """Look for silos that changed since the champion was trained; if their shift is large enough, train and decide.

    Changed files of the source are partitioned first. What is not named is read from `watch` in params.yaml.

    Args:
        methods: The methods to train, compared with the reference; the champion's if none is chosen.
        grade: The least grade of a silo's shift at which models are trained.
        prefer: What may become the champion; cheaper allows a model that sent fewer bytes and is not worse.
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
    """
    chosen = {"methods": list(methods or ()), "grade": grade, "prefer": prefer}
    project = project.with_overrides([f"watch.{key}={json.dumps(value)}" for key, value in chosen.items() if value])
    with ExitStack() as lock:
        try:
            lock.enter_context(exclusive_lock(project.root / FOLDER / "watch"))
        except UserError:
            return changed_silos.make_answer(
                "busy", "Another `siloflow watch` works in this project; it finishes what there is to do."
            )
        finish(project)
        answer = changed_silos.look(project)
        if answer is None:
            answer = _decide(project)
        enforce_retention(project)
        return answer


def _decide(project: Project) -> WatchAnswer:
    """Make the data again if their source changed, diagnose the silos, and train and promote where that is due."""
    champion = changed_silos.read_champion(project)
    _emit_promotions(project)
    # before anything is compared, since a decision depends on the data version
    if project.data.is_source_changed():
        progress.say("partitions the data again, since their source has changed")
        make(project)
    answer = changed_silos.settled_answer(project, champion)
    if answer is not None:
        return answer
    with project.data.working("watch"):
        # a decision whose reason may pass: its diagnosis holds, and another one would query the silos again
        judged = changed_silos.last_decision(project, champion)
        if judged is not None:
            progress.say(f"tries again, since {judged['reason']}")
            return _concluded(project, _challenge(project, champion, judged["watch"]))
        changed = changed_silos.changed_silos(project, champion)
        progress.say(f"changed since champion {champion.number}: {some([*changed], NAMED)}")
        progress.say("compares each silo with its rows at that time")
        diagnosis = _diagnose(project, champion, changed)
        grade = project.params.watch.grade
        shifted = shifted_silos(diagnosis, grade, changed)
        unchecked = unchecked_silos(diagnosis, changed)
        _emit_shifts(project, champion, shifted)
        saw: WatchSaw = {
            "seen": changed_silos.what_is_seen(project, champion),
            "since": champion.tags["data_version"],
            "changed": changed,
            "shifted": shifted,
            "unchecked": unchecked,
            "unseen": unseen_shifts(diagnosis, changed),
            "diagnosis": None if diagnosis is None else diagnosis["folder"],
            "comparison": None,
        }
        if not shifted:
            weaker = shifted_silos(diagnosis, GRADES[0], changed)
            reason = f"{no_shift_text(grade, weaker, unchecked)}{unchecked_text(unchecked)}"
            return _concluded(project, keep(project, champion, reason, saw))
        progress.say(f"trains again: {shift_text(shifted)}")
        return _concluded(project, _challenge(project, champion, saw))


def _diagnose(project: Project, champion: ModelVersion, changed: Mapping[str, str]) -> VersionResult | None:
    """Compare each silo with itself in the champion's data version; None if no silo was there."""
    if all(changed.get(client) == "added" for client in project.silos.federated().clients):
        return None
    quiet = without_second_look(project)
    report = diagnose.on(quiet, against=champion.tags["data_version"])
    assert "against" in report, "silos are compared with a version"
    return report


def without_second_look(project: Project) -> Project:
    """Return the project without a second look, which is at pairs of silos and is refused against a version."""
    return project.with_overrides(["diagnose.second_look=false"]) if project.params.diagnose.second_look else project


def _challenge(project: Project, champion: ModelVersion, saw: WatchSaw) -> Decision:
    """Train on the present data, and promote the challenger if it is better than the champion; return the decision."""
    methods = methods_to_train(project, champion)
    name, is_begun = _comparison_name(project, champion, methods)
    comparison = compare.on(project, methods=methods, name=name, resume=is_begun)
    saw = {**saw, "comparison": name}
    registry = comparison["registry"]
    if registry is None:
        raise UserError(
            f"watch: MLflow did not register the models of {name}. Run `siloflow watch` again, which continues there."
        )
    versions = [candidate["version"] for candidate in registry["candidates"]]
    if registry["challenger"] in versions:
        return promote(project, registry["challenger"], force=False, with_data=False, watch=saw)
    reason, may_pass = why_no_challenger(name, comparison["failed"])
    return keep(project, champion, reason, saw, may_pass=may_pass)


def methods_to_train(project: Project, champion: ModelVersion) -> list[str]:
    """Return the methods of `watch.methods`, or the champion's if it names none."""
    return project.params.watch.methods or [champion.tags["method"]]


def why_no_challenger(name: str, failed: Sequence[FailedRun]) -> tuple[str, bool]:
    """Return why a comparison has no challenger, and whether the reason may pass, as that of a run that failed."""
    errors = "; ".join(f"{run['method']} seed {run['seed']} failed: {run['error']}" for run in failed)
    return errors or f"{name} has no model that may replace it", bool(errors)


def _comparison_name(project: Project, champion: ModelVersion, methods: list[str]) -> tuple[str, bool]:
    """Return the name of the comparison, and whether an earlier watch that was stopped has begun it."""
    plan = make_plan(project, methods, None, None)
    base = f"watch-{project.silos.version[:8]}-champion{champion.number}"
    number, name = 1, base
    while (project.store.runs / name / "experiment.json").is_file():
        try:
            check_resume(project, plan, name)
        except UserError:  # it was begun with other params
            number += 1
            name = f"{base}-{number}"
        else:
            return name, True
    return name, False


def _emit_shifts(project: Project, champion: ModelVersion, shifted: Sequence[ShiftedSilo]) -> None:
    """Emit an event of Prefect for each silo; a watch that continues after a kill emits it under the same id."""
    for silo in shifted:
        shift = shift_event(project, champion, silo)
        emit_event(shift["event"], shift["resource"], payload={**shift["payload"]}, id=shift["id"])


class ShiftPayload(TypedDict):
    """What the event of a shift says; `since` is the champion's data version."""

    silo: str
    kind: list[str]
    grade: str | None
    grades: Grades
    features: list[str]
    words: str
    rows: str
    since: str
    data: str
    data_version: str


class ShiftEvent(TypedDict):
    """The parameters of Prefect's `emit_event`."""

    event: str
    resource: dict[str, str]
    payload: ShiftPayload
    id: UUID


def shift_event(project: Project, champion: ModelVersion, silo: ShiftedSilo) -> ShiftEvent:
    """Return the event of a silo that shifted since the champion's data version, as Prefect's `emit_event` takes it."""
    data, since, version = project.params.data.name, champion.tags["data_version"], project.silos.version
    resource = "siloflow." + quote(f"silo.{data}.{silo['client']}")
    return {
        "event": SHIFTED,
        "resource": {"prefect.resource.id": resource, "prefect.resource.name": silo["client"]},
        "payload": {
            "silo": silo["client"],
            "kind": list(silo["kinds"]),
            "grade": silo["grade"],
            "grades": silo["kinds"],
            "features": silo["features"],
            "words": silo["words"],
            "rows": silo["rows"],
            "since": since,
            "data": data,
            "data_version": version,
        },
        "id": uuid5(NAMESPACE_URL, f"{project.root} {SHIFTED} {resource} {version} {since}"),
    }


def _emit_promotions(project: Project) -> None:
    """Emit the events of promotions; what Prefect does not accept waits for the next flow."""
    with ignore_prefect_failure():
        promotion_history.emit_queued(project.root)


def _concluded(project: Project, decision: Decision) -> WatchAnswer:
    """Return the answer to a decision, after showing it on Prefect's page."""
    answer = answer_of(decision)
    _emit_promotions(project)
    prefect_artifacts.log_artifact(answer["sentence"])
    shifts = f"Shifted: {shift_text(answer['shifted'])}. " if answer["shifted"] else ""
    shifts += "".join(f"Not checked: {client}: {why} " for client, why in [*answer["unchecked"].items()][:NAMED])
    prefect_artifacts.show_markdown("watch", as_markdown(f"{shifts}{answer['sentence']}"))
    return answer


def answer_of(decision: Decision) -> WatchAnswer:
    """Return the answer to a decision: what was seen, and which version is the champion now."""
    words = {"promoted": "is the champion", "refused": "is not promoted", "kept": "stays the champion"}
    version, what = f"version {decision['version']} of {decision['model']}", decision["decision"]
    assert what != "rolled back", "a user decided that"
    sentence = f"{version} {words[what]}: {decision['reason']}."
    champion = decision["champion"] if what == "refused" else decision["version"]
    answer = changed_silos.make_answer(what, sentence)
    return {**answer, **decision["watch"], "champion": champion, "decision": decision}

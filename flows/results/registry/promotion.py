"""Promotes a registered model to champion, and rolls back to the one before, each as one transaction.

A transaction moves aliases and tags in MLflow, logs the decision as an artifact, restores a version of data/ if the
user wants it, appends a line to the history, and queues Prefect's event of a promotion by `watch`. It is first written
to a journal. After a kill, or while MLflow does not answer, the next command carries it out: every step has the same
effect when it is repeated.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypedDict

from flows.core.config.params_schema import WatchParams
from flows.core.console import progress
from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.project.project_data import exclusive_data_access
from flows.project.run_sets import is_of_other_partition, newest_experiment
from flows.results.registry import FOLDER, JOURNAL, promotion_history
from flows.results.registry.champion_evidence import (
    COMPARISON,
    PERSONAL,
    comparison_of,
    proved_better,
    quote,
    way_out,
)
from flows.results.registry.model_finder import all_registries, model_name
from flows.results.registry.promotion_history import append_decision, find_repeated
from flows.results.registry.register_candidates import challenge, is_better, is_certain, is_cheaper, register_run
from flows.training.load_finished_run import find_run
from flows.training.run_records.mlflow_run_metadata import git_commit
from silos.errors import UserError, shown
from silos.io.locks import in_turn
from silos.versioning import data_versions, dvc_files
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.mlflow_logging.connection import describe_problem
from tasks.tracking.mlflow_logging.model_registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    ModelVersion,
    Registry,
    is_store_failure,
)
from tasks.tracking.result_types.comparison_result import ComparisonResult
from tasks.tracking.result_types.registry_records import (
    Challenge,
    Decision,
    DecisionName,
    DecisionOrigin,
    NoChallenge,
    Verdict,
    WatchSaw,
)


def promote(project: Project, run: str | None, force: bool, with_data: bool, watch: WatchSaw | None = None) -> Decision:
    """Make a model the champion if it is better than the present one; return the decision.

    Args:
        project: The project.
        run: The run's folder or name, or the number of a version; None is the challenger.
        force: Promote also without evidence; the decision says so.
        with_data: Restore the data version on which the model was trained.
        watch: What `siloflow watch` saw, if it decides; the decision has it under `watch`.

    Raises:
        UserError: If there is no such model, if it is the champion, or if MLflow does not answer.
    """
    with _exclusive(project):
        registry = Registry(project.store.tracking, model_name(project))
        aliases = registry.aliases()
        version = _find(project, registry, run, aliases)
        number = aliases.get(CHAMPION)
        if number == version.number:
            raise UserError(
                f"promote: got version {number} of {registry.model}, which is the champion, expected another. "
                "Name another run."
            )
        champion = registry.find(number) if number is not None else None
        passed, verdict = _judge(project, version, champion, force)
        origin = _origin(project, registry, "promoted" if passed else "refused", version, champion)
        decision: Decision = {**origin, **verdict}
        if watch:
            decision["watch"] = watch
        if not passed:
            # `watch` may judge the same version again and again; the history keeps one such refusal
            earlier = find_repeated(project.root, decision) if watch else None
            if earlier is not None:
                return earlier
            _carry_out(project, registry, decision, {}, {}, with_data=False)
            return decision
        # without the new champion itself: a rollback must reach another version
        former = [] if champion is None else [champion.number, *_former_champions(champion)]
        tags, moved = _champion(version.number, [other for other in former if other != version.number][:_MOST_FORMER])
        if aliases.get(CHALLENGER) == version.number:
            moved[CHALLENGER] = None
        _carry_out(project, registry, decision, tags, moved, with_data)
        return decision


def roll_back(project: Project, with_data: bool) -> Decision:
    """Make the model before the champion the champion again; return the decision.

    Former champions are a stack: a second call goes further back, and never to a version that a call has withdrawn.

    Raises:
        UserError: If there is none, or if MLflow does not answer.
    """
    with _exclusive(project):
        registry = Registry(project.store.tracking, model_name(project))
        aliases = registry.aliases()
        champion = registry.find(aliases[CHAMPION]) if CHAMPION in aliases else None
        numbers = [] if champion is None else _former_champions(champion)
        left = [version for version in map(registry.find, numbers) if version is not None]
        if champion is None or not left:
            raise UserError(
                f"rollback: got no former champion of {registry.model}, expected one. `siloflow promote` makes a model "
                "the champion."
            )
        former, *others = left
        decision: Decision = {
            **_origin(project, registry, "rolled back", former, champion),
            "forced": False,
            "reason": f"version {champion.number} was withdrawn",
            "against": None,
            "next": "siloflow predict FILE --output labels.csv",
        }
        _carry_out(
            project, registry, decision, *_champion(former.number, [other.number for other in others]), with_data
        )
        return decision


def needed_runs(project: Project) -> set[str]:
    """Return the folders of the runs, of all data, that have a version with an alias, or that a rollback may return to.

    The run of a transaction that is under way is one of them: its version has no alias yet.
    """
    journal = _read_journal(project)
    needed = set() if journal is None else {str(journal["decision"]["run"])}
    for registry in all_registries(project):
        aliases = registry.aliases()
        versions = {version.number: version for version in registry.versions()} if aliases else {}
        champion = versions.get(aliases.get(CHAMPION, ""))
        numbers = {*aliases.values(), *(_former_champions(champion) if champion else ())} & {*versions}
        needed |= {versions[number].tags["run"] for number in numbers if "run" in versions[number].tags}
    return needed


def keep(project: Project, champion: ModelVersion, reason: str, watch: WatchSaw, may_pass: bool = False) -> Decision:
    """Record in the history that `siloflow watch` kept the champion without a challenger; return the decision.

    Args:
        project: The project.
        champion: The champion.
        reason: Why there is no challenger.
        watch: What the watch has seen.
        may_pass: Whether the reason may pass until the next watch, which then tries again.
    """
    with _exclusive(project):
        passing: NoChallenge = {"why_not": reason, "may_pass": True}
        decision: Decision = {
            **_origin(project, Registry(project.store.tracking, model_name(project)), "kept", champion, champion),
            "forced": False,
            "reason": reason,
            "against": passing if may_pass else None,
            "watch": watch,
        }
        earlier = find_repeated(project.root, decision)
        if earlier is None:
            append_decision(project.root, decision)
        return earlier or decision


def finish(project: Project) -> None:
    """Carry out a transaction that was interrupted; UserError if that fails again."""
    with _exclusive(project):
        pass


class _Journal(TypedDict):
    """A transaction: what was decided, and what it changes in MLflow and in data/."""

    model: str
    decision: Decision
    aliases: dict[str, str | None]
    tags: dict[str, str]
    data: str | None
    event: promotion_history.PromotionEvent | None


_REPLACED = "replaced"  # the champion's tag with the numbers of the former champions, newest first
_MOST_FORMER = 100


def _former_champions(champion: ModelVersion) -> list[str]:
    """Return the numbers of the champions before this one, newest first, without those that were withdrawn."""
    return [number for number in champion.tags.get(_REPLACED, "").split(",") if number]


def _champion(number: str, former: list[str]) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the tags and aliases that make a version the champion after these ones."""
    return {_REPLACED: ",".join(former)}, {CHAMPION: number, PREVIOUS: former[0] if former else None}


@contextmanager
def _exclusive(project: Project) -> Iterator[None]:
    """Let one process at a time decide; finish an interrupted transaction first, and explain MLflow's failures."""
    try:
        with in_turn(project.root / FOLDER / "lock"):
            journal = _read_journal(project)
            if journal is not None:
                _apply(project, Registry(project.store.tracking, journal["model"]), journal)
            yield
    except Exception as error:
        if not is_store_failure(error):
            raise
        is_open = (project.root / JOURNAL).is_file()
        advice = "The next command completes the decision" if is_open else "Nothing was changed; try again"
        raise UserError(f"{describe_problem(project.store.tracking, error)}. {advice}.") from error


def _find(project: Project, registry: Registry, run: str | None, aliases: Mapping[str, str]) -> ModelVersion:
    """Return the version that the user names; a finished run is registered if it is not."""
    if run is None:
        challenger = registry.find(aliases[CHALLENGER]) if CHALLENGER in aliases else None
        if challenger is None:
            raise UserError(
                f"promote: got no RUN, and {registry.model} has no challenger, expected one of them. "
                f"{_how_to_register(project)} registers candidates."
            )
        return challenger
    # isdigit alone also accepts digits such as ², which number no version
    if run.isascii() and run.isdigit():
        version = registry.find(run)
        if version is None:
            numbers = ", ".join(v.number for v in reversed(registry.versions())) or "none"
            raise UserError(f"promote: got version {shown(run)}, expected one of {registry.model}: {numbers}.")
        return version
    folder = find_run(project, run)
    result = folder.finished()
    if result is None:
        raise UserError(
            f"promote: got the unfinished run {folder.path.name}, expected a finished one. Finish it first."
        )
    if method_of(project.params, result["method"]).is_bound:
        raise UserError(
            f"promote: got {folder.path.name}, expected a candidate, since {result['method']} uses what no server may see. "
            "Name a run of another method."
        )
    if is_of_other_partition(project, folder.path, result["data_version"]):
        raise UserError(
            f"promote: got {folder.path.name}, which was trained on another partition, expected a run on data/, since its "
            "training rows may be test rows of data/. Name another run."
        )
    version = register_run(project, registry, result)
    if version is None and result["mlflow_run_id"] is None:
        raise UserError(
            f"promote: got {folder.path.name}, which ended while MLflow was away, expected a run that MLflow has. Repeat "
            "the command that started it with --resume, which sends the run and trains nothing again."
        )
    if version is None and not project.silos.is_here:
        raise UserError(
            f"promote: got {folder.path.name}, with models of single clients, which stay at their places, expected a model "
            f"that all clients share. `siloflow place send {folder.path.name}` lets places use theirs without a promotion."
        )
    if version is None:
        raise UserError(
            f"promote: got {folder.path.name}, whose model MLflow does not have, expected a logged model. `siloflow compare "
            f"{result['method']} {PERSONAL}` trains it again and logs the models of single clients, too."
        )
    return version


def _how_to_register(project: Project) -> str:
    """Return the command that registers candidates: the newest comparison again, if MLflow was away at its end."""
    name = newest_experiment(project, "compare")
    newest: ComparisonResult | None = None if name is None else read_json(project.store.runs / name / COMPARISON)
    registry = newest.get("registry") if newest else None
    if newest and newest["runs"] and registry is None:
        return f"MLflow was away when {name} ended: its command with --resume --name {name}"
    personal = [str(row["method"]) for row in newest["table"] if row["model"] == "personal"] if newest else []
    if registry and personal and not registry["candidates"]:
        return f"Models of single clients are registered on demand: `siloflow compare {' '.join(personal)} {PERSONAL}`"
    return "`siloflow compare`"


def _judge(project: Project, version: ModelVersion, champion: ModelVersion | None, force: bool) -> tuple[bool, Verdict]:
    """Return whether the version may become the champion, and the part of the decision that says why.

    There is no champion to compare a first one with. What its own comparison proved better speaks against it.
    """
    run, method = version.tags.get("run"), version.tags.get("method")
    comparison = comparison_of(project, run)
    if champion is None:
        better = proved_better(comparison, method) if comparison else []
        passed, reason = not better, "there was no champion"
        if comparison and better:
            reason = f"{comparison['experiment']} found: {'; '.join(better)}"
        against: Challenge | NoChallenge | None = None
    else:
        progress.say(f"comparing version {version.number} with the champion on the present test rows")
        against = challenge(project, run, champion.tags.get("run"))
        passed, reason = _verdict(against, project.params.watch)
    forced = force and not passed
    return passed or force, {
        "forced": forced,
        "reason": f"forced, although {reason}" if forced else reason,
        "against": against,
        "comparison": comparison and quote(comparison, method),
        "next": _next_command(project, version, passed or force, against, comparison),
    }


def _next_command(
    project: Project,
    version: ModelVersion,
    promoted: bool,
    against: Challenge | NoChallenge | None,
    comparison: ComparisonResult | None,
) -> str:
    """Return what to type after a decision: how to use the champion, or how to get a model that may become it."""
    out = ""
    if comparison:
        out = way_out(comparison, version.tags.get("method"), lambda name: _may_be_candidate(project, name))
    if promoted:
        also = f"; for the method that is better: {out}" if out else ""
        return f"siloflow predict FILE --output labels.csv{also}"
    if against is not None:
        return "siloflow compare" if "why_not" in against else "siloflow advise"
    return out or "siloflow advise"


def _may_be_candidate(project: Project, method: str) -> bool:
    """Return whether the method of an earlier comparison is no bound for others, and params still know it."""
    try:
        return not method_of(project.params, method).is_bound
    except UserError:  # it was in a plugin file that is gone
        return False


def _verdict(against: Challenge | NoChallenge, watch: WatchParams) -> tuple[bool, str]:
    if "why_not" in against:
        return False, f"there is no interval: {against['why_not']}"
    if is_better(against):
        return True, "its interval is above zero"
    if watch.prefer == "cheaper":
        if is_cheaper(against, watch.margin):
            return True, f"it sent fewer bytes, and is not worse by more than {watch.margin:g}"
        return False, f"it is neither better, nor cheaper and not worse by more than {watch.margin:g}"
    if is_certain(against):
        return False, "its gain is certain, but smaller than what matters"
    return False, "its interval is not above zero"


def _origin(
    project: Project, registry: Registry, what: DecisionName, version: ModelVersion, champion: ModelVersion | None
) -> DecisionOrigin:
    return {
        "id": secrets.token_hex(6),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "decision": what,
        "model": registry.model,
        "version": version.number,
        "run": version.tags.get("run"),
        "run_id": version.run_id,
        "data_version": version.tags.get("data_version"),
        "champion": None if champion is None else champion.number,
        "git_commit": git_commit(project.root),
    }


def _carry_out(
    project: Project,
    registry: Registry,
    decision: Decision,
    tags: dict[str, str],
    aliases: dict[str, str | None],
    with_data: bool,
) -> None:
    """Write the journal, then do what it says."""
    tags = {"decision": f"{decision['decision']} at {decision['at']}: {decision['reason']}", **tags}
    journal: _Journal = {
        "model": registry.model,
        "decision": decision,
        "aliases": aliases,
        "tags": tags,
        "data": decision["data_version"] if with_data else None,
        "event": None,
    }
    if decision["decision"] == "promoted" and "watch" in decision:
        journal["event"] = promotion_history.promotion_event(decision, project.params.data.name)
    write_json(project.root / JOURNAL, journal)
    _apply(project, registry, journal)


def _read_journal(project: Project) -> _Journal | None:
    journal: _Journal | None = read_json(project.root / JOURNAL)
    return journal


def _apply(project: Project, registry: Registry, journal: _Journal) -> None:
    """Do all steps of the transaction, or do them again, and delete the journal.

    The data come first. If the user has to mend them, the transaction is given up, and nothing has changed.
    """
    decision = journal["decision"]
    if journal["data"] is not None:
        try:
            _restore_data(project, journal["data"])
        except UserError:
            (project.root / JOURNAL).unlink()
            raise
    registry.tag(decision["version"], journal["tags"])
    registry.log_decision(decision["run_id"], decision)
    registry.set_aliases(journal["aliases"])
    append_decision(project.root, decision)
    event = journal.get("event")
    if event is not None:  # earlier versions wrote none
        promotion_history.queue(project.root, event)
    (project.root / JOURNAL).unlink()


def _restore_data(project: Project, digest: str) -> None:
    if dvc_files.recorded_version(project.root) != digest:
        with exclusive_data_access(project.root, f"`siloflow data use {digest[:10]}`"):
            data_versions.use_version(project.root, digest)

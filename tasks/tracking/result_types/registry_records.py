"""Types of what siloflow knows of MLflow's registry: candidates, decisions on the champion, and what `watch` saw."""

from typing import Literal, NotRequired, TypedDict, final

from models.metrics.paired_difference import DifferenceRecord
from tasks.tracking.result_types.diagnosis_records import Grade, Grades


@final
class NoChallenge(TypedDict):
    """Why a candidate was not compared with the champion."""

    why_not: str
    may_pass: NotRequired[bool]
    """True if a later call may find an interval."""


@final
class Challenge(DifferenceRecord):
    """The paired difference of a candidate from the champion on the present test rows; it says nothing of other seeds."""

    matters: float
    """The smallest difference that names a winner, in units of the metric."""
    gain: list[float] | None
    """The interval with a sign such that more is better; null if it is not finite."""
    cheaper: bool
    """Whether the candidate's run sent fewer bytes."""
    clients: int
    """The number of clients that both models were scored on."""
    older: list[str]
    """The models that were trained on another data version."""


class Candidate(TypedDict):
    """A registered run of a method."""

    method: str
    seed: int
    run: str
    """The run's folder in that of the comparison."""
    version: str
    """The number of the registered version."""
    against: Challenge | NoChallenge | None
    """Null without a champion, or if the candidate is the champion."""
    better: bool
    """Whether it is certainly better than the champion, by what matters or more."""


class RegisteredCandidates(TypedDict):
    """The candidates of a comparison; champion and challenger are numbers of versions, null if there is none."""

    model: str
    champion: str | None
    challenger: str | None
    candidates: list[Candidate]


class QuotedComparison(TypedDict):
    """What the comparison that a model comes from says of the model's method."""

    experiment: str
    open_faults: list[str]
    sentences: list[str]
    """At most three paired differences, certain ones first."""
    omitted: int
    """The number of other sentences."""


class ShiftedSilo(TypedDict):
    """A silo whose rows shifted since the champion was trained."""

    client: str
    kinds: Grades
    """The grade by type of shift; null where it is not defined."""
    grade: Grade | None
    """The strongest of them."""
    features: list[str]
    rows: Literal["all", "new"]
    """Whether whole versions differ, or the new rows from the earlier ones."""
    words: NotRequired[str]
    """How it shifted; decisions of earlier versions lack it."""
    new_rows: int | None
    """The number of new rows, if these shifted."""


WatchOutcome = Literal["busy", "unchanged", "promoted", "refused", "kept"]


class WatchedState(TypedDict):
    """What a decision of `watch` depends on; `watch` decides once for equal values."""

    champion: str
    data_version: str
    settings: dict[str, str | float | list[str]]
    """The section `watch` of params.yaml."""


class SilosSeen(TypedDict):
    """How silos differ from the champion's data version."""

    changed: dict[str, str]
    """How each silo changed: added, removed or changed."""
    shifted: list[ShiftedSilo]
    unchecked: NotRequired[dict[str, str]]
    """Why a silo was not checked, or only in part; decisions of earlier versions lack it."""
    unseen: list[str]
    """Sentences on the least shift that would have been noticed."""
    diagnosis: str | None
    """The folder of the diagnosis in runs/."""
    comparison: str | None
    """The name of the comparison in which models were trained; null if none were."""


class WatchSaw(SilosSeen):
    """What `watch` saw before a decision."""

    seen: WatchedState
    since: str
    """The champion's data version."""


DecisionName = Literal["promoted", "refused", "rolled back", "kept"]


class DecisionOrigin(TypedDict):
    """What was decided on which version, before the reason is known."""

    id: str
    at: str
    """The time in UTC."""
    decision: DecisionName
    model: str
    version: str
    run: str | None
    """The run's folder, relative to the project; null if the version does not name it."""
    run_id: str
    """The id of MLflow's run."""
    data_version: str | None
    champion: str | None
    """The version that was the champion before."""
    git_commit: str


class Verdict(TypedDict):
    """Why a version was promoted or not."""

    forced: bool
    reason: str
    against: Challenge | NoChallenge | None
    comparison: NotRequired[QuotedComparison | None]
    """Null of a single run; only of a promotion or refusal."""
    next: NotRequired[str]
    """What to type next."""


class Decision(DecisionOrigin, Verdict):
    """A promotion, refusal, rollback, or what `watch` decided: a line of runs/registry/history.jsonl."""

    watch: NotRequired[WatchSaw]
    """What was seen, if `watch` decided."""


class History(TypedDict):
    """What `siloflow history` prints, newest first."""

    decisions: list[Decision]


class WatchAnswer(SilosSeen):
    """What `siloflow watch` prints."""

    outcome: WatchOutcome
    sentence: str
    champion: str | None
    """The version that is the champion now."""
    decision: Decision | None
    seen: NotRequired[WatchedState]
    """With `since`, of a decision."""
    since: NotRequired[str]

"""Reads the comparison that a model comes from: what it says of the model's method, and what it proved better."""

from collections.abc import Callable, Iterator

from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.comparison_text import sentences_first
from flows.project.project import Project
from tasks.tracking.json_io import read_json
from tasks.tracking.result_types.comparison_result import ComparisonResult
from tasks.tracking.result_types.registry_records import Candidate, QuotedComparison

COMPARISON = "comparison.json"
_QUOTED = 3  # sentences on a method


def comparison_of(project: Project, run: str | None) -> ComparisonResult | None:
    """Return the recorded comparison whose run this folder is; None of a single run."""
    if run is None:
        return None
    found: ComparisonResult | None = read_json(
        (project.root / run).parent / COMPARISON, keys=("experiment", "paired", "table")
    )
    return found


def quote(comparison: ComparisonResult, method: str | None) -> QuotedComparison:
    """Return the comparison's name and what it says of a method.

    `open_faults` are those of the data that it was trained on. `sentences` are at most three: that no method is better than
    a constant answer, if so, and its paired differences, certain ones first; `omitted` counts the others.
    """
    about = [pair for pair in comparison["paired"] if method in (pair["method"], pair["reference"])]
    about.sort(key=lambda pair: not pair.get("distinguishable"))
    sentences = [*sentences_first(comparison), *(pair["sentence"] for pair in about)]
    return {
        "experiment": comparison["experiment"],
        "open_faults": list(comparison.get("open_faults", ())),
        "sentences": sentences[:_QUOTED],
        "omitted": max(len(sentences) - _QUOTED, 0),
    }


def proved_better(comparison: ComparisonResult, method: str | None) -> list[str]:
    """Return the sentences that prove something better than this method, and that a first champion may not ignore.

    These are training alone, the constant answer, and another registered candidate. Comparisons of earlier versions have
    no baseline and no gains.
    """
    return list(
        dict.fromkeys([*_alone(comparison, method), *_constant(comparison, method), *_other(comparison, method)])
    )


PERSONAL = "--set tracking.personal_models=true"
"""What makes MLflow keep the models of single clients, so that they may be promoted."""


def way_out(comparison: ComparisonResult, method: str | None, may_be: Callable[[str], bool]) -> str:
    """Return what to type for a model that is proved better than this method's; "" if there is none.

    Args:
        comparison: The comparison that the method's model comes from.
        method: The method.
        may_be: Returns whether a method may be a candidate, which a bound for others may not.
    """
    versions = {each["method"]: each["version"] for each in _candidates(comparison) if "version" in each}
    pairs = [pair for pair in comparison["paired"] if method in (pair["method"], pair["reference"])]
    better = [pair["better"] for pair in pairs if pair["better"] not in (None, method) and may_be(pair["better"])]
    registered = [versions[name] for name in better if name in versions]
    if registered:
        return f"siloflow promote {registered[0]}"
    better += [ALONE] * any(_alone(comparison, method))
    return f"siloflow compare {better[0]} {PERSONAL}, then siloflow promote" if better else ""


def _candidates(comparison: ComparisonResult) -> list[Candidate]:
    registry = comparison.get("registry")
    return registry["candidates"] if registry else []


def _alone(comparison: ComparisonResult, method: str | None) -> Iterator[str]:
    """Yield the sentence that training alone is better: the paired one, or that on gains if it is not the reference."""
    paired = [pair for pair in comparison["paired"] if {pair["method"], pair["reference"]} == {method, ALONE}]
    if paired:
        yield from (pair["sentence"] for pair in paired if pair["better"] == ALONE)
        return
    gains = comparison.get("gains")
    gain = gains["methods"].get(method) if gains and method else None
    matters = max((pair.get("matters", 0.0) for pair in comparison["paired"]), default=0.0)
    mean = gain["mean"] if gain and gain["distinguishable"] else None
    if gain and mean is not None and mean < 0 and -mean >= matters:
        yield gain["sentence"].rstrip(".")


def _constant(comparison: ComparisonResult, method: str | None) -> Iterator[str]:
    """Yield the sentence that the constant answer is better."""
    baseline = comparison.get("baseline")
    for record in baseline["paired"] if baseline else ():
        if record["method"] == method and record["better"] not in (None, method):
            yield record["sentence"]


def _other(comparison: ComparisonResult, method: str | None) -> Iterator[str]:
    """Yield the sentences that another registered candidate is better."""
    candidates = {each["method"] for each in _candidates(comparison)}
    for pair in comparison["paired"]:
        if method in (pair["method"], pair["reference"]) and pair["better"] in candidates - {method}:
            yield pair["sentence"]

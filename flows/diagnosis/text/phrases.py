"""Phrases that the sentences and tables of a diagnosis share, and reasons for undetermined pairs in words."""

from collections.abc import Iterable, Mapping, Sequence

from models.diagnosis import wald_tests
from models.diagnosis.client_summaries import gaussian_mechanism
from models.diagnosis.diagnose_pairs import REASONS
from models.diagnosis.name_shift_types import MIN_ROWS
from models.diagnosis.shift_words import Reason, ShiftType
from models.metrics.task_metrics import format_number
from silos.errors import counted
from tasks.tracking.result_types.diagnosis_records import (
    ChangeRecord,
    Evidence,
    GroupPairRecord,
    PairRecord,
    SiloRecord,
)
from tasks.tracking.result_types.diagnosis_result import DiagnosisFacts, SiloFacts

_TYPE_PHRASES: dict[ShiftType, str] = {
    "feature": "inputs differ",
    "label": "label frequencies differ",
    "concept": "labels follow from the inputs by another rule",
}
_TYPE_PHRASES_OF_TARGETS: dict[ShiftType, str] = {
    "feature": "inputs differ",
    "label": "targets differ",
    "concept": "targets follow from the inputs by another rule",
}
SHORT: dict[ShiftType, str] = {"feature": "inputs", "label": "labels", "concept": "rule"}
SHORT_IN_A_REGRESSION: dict[ShiftType, str] = {"feature": "inputs", "label": "targets", "concept": "rule"}
_MAX_SILOS, _MAX_LETTERS = 3, 30  # of a group that is called by its silos' names
_MAX_LISTED = 8  # silos that a sentence lists
_SEVERAL = 3  # far values, which are hardly all typing errors
_FRACTIONS = {
    2: "half",
    3: "a third",
    4: "a quarter",
    5: "a fifth",
    10: "a tenth",
    100: "a hundredth",
    1000: "a thousandth",
}


def type_phrases(report: DiagnosisFacts) -> dict[ShiftType, str]:
    """Return a clause for each type."""
    return _TYPE_PHRASES_OF_TARGETS if report["query"]["targets"] else _TYPE_PHRASES


def type_words(report: DiagnosisFacts) -> dict[ShiftType, str]:
    """Return one word by type."""
    return SHORT_IN_A_REGRESSION if report["query"]["targets"] else SHORT


def shown_counts(record: GroupPairRecord) -> dict[ShiftType, int]:
    """Return how many pairs of two groups have each type, as `shown_types` counts them."""
    return {**record["types"], "concept": record["types"]["concept"] - record["rule_unknown"]}


def num_determined(record: GroupPairRecord) -> int:
    """Return how many pairs of two groups were compared."""
    return record["pairs"] - record["undetermined"]


def described_changes(changes: Sequence[ChangeRecord]) -> list[ChangeRecord]:
    """Return the changes that are described: of the columns of one category, such as ward=eye and ward=heart, the first."""
    by_column: dict[tuple[str, str], ChangeRecord] = {}
    for change in changes:
        name = change["name"].partition("=")[0] if change["what"] == "category" else change["name"]
        by_column.setdefault((name, change.get("silo", "")), change)  # targets of several silos are all described
    return [*by_column.values()]


def change_phrases(changes: Sequence[ChangeRecord], report: DiagnosisFacts, others: Sequence[str] = ()) -> list[str]:
    """Describe by how much the first of two sides differs from the second: a clause for each described change.

    The first clause has an interval. others: the features that explain a change of the rule about as well.
    """
    described = described_changes(changes)
    return [_change_phrase(change, report, not index, others) for index, change in enumerate(described)]


def _change_phrase(change: ChangeRecord, report: DiagnosisFacts, with_interval: bool, others: Sequence[str]) -> str:
    name, difference = change["name"], change["difference"]
    interval = with_interval and "low" in change
    # first, since a mean that looks like another unit is no difference to be given in deviations
    if change["what"] == "mean" and "factor" in change:
        return (
            f"{name} is {_times(change['factor'])} as large (mean {format_number(change['first'])} against "
            f"{format_number(change['second'])}), "
            "as if it had another unit"
        )
    if change["what"] == "target":
        return _target_phrase(change, report, interval)
    if change["what"] == "mean":
        spread = f"{format_number(abs(change['deviations']), 2)} standard deviations" if "deviations" in change else ""
        between = f"95 % interval {_interval(change, 1, 3)}" if interval else ""
        details = ", ".join(part for part in (spread, between) if part)
        return f"{name} is {_direction(difference)} by {format_number(abs(difference))}" + (
            f" ({details})" if details else ""
        )
    if change["what"] == "spread":
        more = "more" if difference > 0 else "less"
        sides = f"{format_number(change['first'])} against {format_number(change['second'])}"
        return f"{name} varies {more} (standard deviation {sides})"
    if change["what"] == "rule":
        return _rule_phrase(change, report, others)
    if change["what"] == "constant":
        value = f"{format_number(float(change['value']), 4)} in all rows"
        return f"{name} varies, against {value}" if change["first"] else f"{name} is {value}, against values that vary"
    if change["what"] == "absent":
        share = _percent(max(change["first"], change["second"]))
        shares = f"{share} of rows against none" if change["first"] else f"no row against {share}"
        return f"{label_is(name, report)} in {shares}"
    if change["what"] == "missing" and 1.0 in (change["first"], change["second"]):
        return _empty_phrase(change)
    points = f"{format_number(100 * difference, 2, '+')} points"
    between = f", 95 % interval {_interval(change, 100, 2, '+')}" if interval else ""
    if change["what"] == "label" and not report["query"]["targets"] and not report["label"]:
        return (
            f'{_percent(change["first"])} of rows are "{name}" against {_percent(change["second"])} ({points}{between})'
        )
    what = {
        "label": label_is(name, report),
        "missing": f"{name} is missing",
        "category": _category(name, change.get("value", "")),
    }[change["what"]]
    return f"{what} in {_percent(change['first'])} of rows against {_percent(change['second'])} ({points}{between})"


def _target_phrase(change: ChangeRecord, report: DiagnosisFacts, with_interval: bool) -> str:
    name, difference = report["label"] or change["name"], change["difference"]
    means = f"mean {format_number(change['first'], 4)} against {format_number(change['second'], 4)}"
    where = f" at {change['silo']}" if "silo" in change else ""
    if "factor" in change:
        return f"{name} is {format_number(change['factor'])} times as large{where} ({means})"
    between = f", 95 % interval {_interval(change, 1, 3)}" if with_interval else ""
    return f"{name} is {_direction(difference)} by {format_number(abs(difference))}{where} ({means}{between})"


def _rule_phrase(change: ChangeRecord, report: DiagnosisFacts, others: Sequence[str]) -> str:
    """Describe at which values of a feature labels differ; `others`: as in `change_phrases`."""
    name, difference, label = change["name"], change["difference"], _label(change["value"], report)
    if "cell" in change:
        shares = f"{_percent(change['first'])} of rows against {_percent(change['second'])}"
        also = f", or the effect of {' or '.join(others)} differs" if others else ""
        return f"where {_cell(name, change['cell'])}, {label_is(change['value'], report)} in {shares}{also}"
    name = " or ".join([name, *others])
    # an interval that contains 0 does not say in which direction the rule differs
    if "low" in change and change["low"] <= 0 <= change["high"]:
        return f"{label} depends on {name} in another way"
    more = "more" if difference > 0 else "less"
    return f"at equal {name}, {label} is {more} frequent by {format_number(abs(100 * difference), 2)} points"


def _empty_phrase(change: ChangeRecord) -> str:
    """Describe a column without any value on one side."""
    first, second = (
        "no row" if share == 1 else f"{_percent(1 - share)} of rows" for share in (change["first"], change["second"])
    )
    return f"{change['name']} has a value in {first} against {second}"


def reversed_changes(changes: Mapping[ShiftType, Sequence[ChangeRecord]]) -> dict[ShiftType, list[ChangeRecord]]:
    """Return the changes with the two sides exchanged."""
    return {kind: [_reversed(change) for change in listed_changes] for kind, listed_changes in changes.items()}


def _reversed(change: ChangeRecord) -> ChangeRecord:
    result: ChangeRecord = {**change, "difference": -change["difference"]}
    if "first" in change:
        result["first"], result["second"] = change["second"], change["first"]
    if "low" in change:
        result["low"], result["high"] = -change["high"], -change["low"]
    if "deviations" in change:
        result["deviations"] = -change["deviations"]
    if "factor" in change:
        result["factor"] = 1 / change["factor"]
    return result


def _times(factor: float) -> str:
    """Return a factor in words: `about 10 times`, `about a tenth`."""
    if factor >= 1:
        return f"about {format_number(factor, 2)} times"
    for divisor, word in _FRACTIONS.items():
        if abs(1 / factor / divisor - 1) < 0.15:
            return f"about {word}"
    return f"about 1/{format_number(1 / factor, 2)}"


def _label(name: str, report: DiagnosisFacts) -> str:
    """Name a class, or a group of targets, by the column of labels if it has a name."""
    if report["query"]["targets"]:
        return f"a target {name}" if not report["label"] else f"{report['label']} {name}"
    return f'{report["label"] or "label"} "{name}"'


def label_is(name: str, report: DiagnosisFacts) -> str:
    """Return `sepsis is "yes"`, or the group of targets."""
    return _label(name, report) if report["query"]["targets"] else f'{report["label"] or "the label"} is "{name}"'


def _category(name: str, value: str) -> str:
    """Name a category; a column that is 1 for one value, such as ward=eye, is named alone."""
    if value == "1" and "=" in name:
        return name
    return f"{name}={value}" if value else name


def _cell(name: str, value: str) -> str:
    """Name the rows of a category, also of a column that is 1 for one value, such as ward=eye."""
    return f"not {name}" if value == "0" and "=" in name else _category(name, value)


def _interval(change: ChangeRecord, scale: int, digits: int, sign: str = "") -> str:
    """Return the interval of a change, of its size if both ends have the sign of the difference and no sign is shown."""
    low, high = scale * change["low"], scale * change["high"]
    if not sign and low < 0 and high <= 0:
        low, high = -high, -low
    return f"{format_number(low, digits, sign)} to {format_number(high, digits, sign)}"


def _direction(difference: float) -> str:
    return "higher" if difference > 0 else "lower"


def _percent(share: float) -> str:
    return f"{format_number(100 * share, 2)} %"


def far_values(report: DiagnosisFacts) -> dict[str, dict[str, list[int]]]:
    """Return the silos with several values apart from all others, as a code for missing values is.

    By feature and silo these are the numbers of values below and above the others.
    """
    if "against" in report:  # versions are not searched for them
        return {}
    entries = [entry for entry in report.get("not_compared", []) if entry["what"] == "values" and "rows" in entry]
    several = [(entry, {silo: far for silo, far in entry["rows"].items() if sum(far) >= _SEVERAL}) for entry in entries]
    return {name: silos for entry, silos in several for name in entry["names"] if silos}


def apart_from(rows: Iterable[Sequence[int]]) -> str:
    """Return on which side of all others values lie; rows: of each silo, the numbers of those below and of those above.

    A code such as -1 beside ages is below all others, and not far from them.
    """
    below, above = (any(counts) for counts in zip(*rows, strict=True))
    return f"apart, {' and '.join(['below'] * below + ['above'] * above)} all others"


def odd_one(report: SiloFacts) -> SiloRecord | None:
    """Return the record of the silo that is one of the two in every differing pair, if there is one such silo.

    It must differ from all others together, too. The silos form one group, since few pairs differ.
    """
    if len(report["groups"]) > 1 or report["pairs_of"] == "groups":
        return None
    differ = [{pair["first"], pair["second"]} for pair in report["pairs"] if pair["types"] and not pair["undetermined"]]
    found = [
        record
        for record in report["rest"]
        if differ and record["types"] and not record["undetermined"] and all(record["client"] in two for two in differ)
    ]
    return found[0] if len(found) == 1 else None


def group_name(report: SiloFacts, group: int) -> str:
    """Name a group by its silos if they are few, or as the others of two groups; otherwise by its number."""
    groups = report["groups"]
    if _is_short(groups[group]):
        return joined(groups[group])
    if len(groups) == 2 and _is_short(groups[1 - group]):
        return f"the other {len(groups[group]):,} silos"
    return f"group {group + 1}"


def group_label(report: SiloFacts, group: int) -> str:
    """Name a group in a table."""
    return ", ".join(report["groups"][group]) if _is_short(report["groups"][group]) else group_name(report, group)


def members(report: SiloFacts) -> list[str]:
    """Return the members of each group that is called by its number."""
    numbers = [index for index in range(len(report["groups"])) if group_name(report, index) == f"group {index + 1}"]
    return [f"group {index + 1} is {listed(report['groups'][index])}" for index in numbers]


def plural(report: SiloFacts, group: int) -> bool:
    """Return whether the name of a group is a plural."""
    return len(report["groups"][group]) > 1 and group_name(report, group) != f"group {group + 1}"


def listed(names: Sequence[str]) -> str:
    """List the names that fit into a sentence, and the number of others."""
    if len(names) <= _MAX_LISTED:
        return joined(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def joined(words: Sequence[str]) -> str:
    """Join with commas, and `and` before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def capital(sentence: str) -> str:
    """Capitalize our own word only; names are written unchanged."""
    own = ("group ", "the other ", "these ")
    return f"{sentence[0].upper()}{sentence[1:]}" if sentence.startswith(own) else sentence


def _is_short(group: Sequence[str]) -> bool:
    return len(group) <= _MAX_SILOS and len(joined(group)) <= _MAX_LETTERS


def reason_note(record: Evidence, names: Sequence[str], report: DiagnosisFacts) -> str | None:
    """Explain why a pair of these names is undetermined; None if it is not."""
    why = record["why"]
    if why is None:
        return None
    if why == "rows":
        small = [name for name, rows in zip(names, record["rows"], strict=True) if rows < MIN_ROWS]
        return f"Not compared: {joined(small)} {_has(small)} {few_rows(report)}."
    if why == "unreported":
        without_report = [name for name, reports in zip(names, record["reports"], strict=True) if not reports]
        return f"Not compared: {joined(without_report)} {_has(without_report)} {too_alike(report)}."
    return f"Not compared: {reason_clause(why, report, ' and '.join(names))}."


def reason_clause(why: Reason, report: DiagnosisFacts, both: str) -> str:
    """Return the reason for undetermined pairs as a clause; `both` names the two sides."""
    label = "group of targets" if report["query"]["targets"] else "label"
    return {
        "rows": f"a silo has {few_rows(report)}",
        "unreported": f"a silo has {too_alike(report)}",
        "apart": f"no {label} has {_rows_needed(report)} in {both}, and no other difference was seen",
        "rough": f"no {label} has {wald_tests.LEAST_WALD_ROWS} rows in {both}, which the verdict moments needs",
        "constant": f"within a {label} that {both} report, each feature has one cell (it has one value, or too few rows for "
        "two: least_cell in owner.yaml), and no other difference was seen",
    }[why]


def shared(report: DiagnosisFacts) -> str:
    """Return the rows that a label needs on both sides for inputs within it to be compared by the verdict."""
    if report["noise"]:
        return "more rows than the noise hides"
    return f"{wald_tests.LEAST_WALD_ROWS if report['verdict'] == 'moments' else least_rows(report)} rows or more"


def few_rows(report: DiagnosisFacts) -> str:
    """Describe a silo with too few rows for a verdict; with noise the number of rows is not exactly known."""
    return f"fewer than {MIN_ROWS} training rows" + (", as far as the noise shows" if report["noise"] else "")


def too_alike(report: DiagnosisFacts) -> str:
    """Describe a silo that may report nothing but its number of rows."""
    if report["noise"]:
        return f"no label with {gaussian_mechanism.MIN_NOISY_ROWS} rows, which the noise would not hide"
    label = "group of targets" if report["query"]["targets"] else "label"
    return f"fewer than {least_rows(report)} different training rows of any {label}, too few to report"


def least_rows(report: DiagnosisFacts) -> str:
    """Return the least rows of the silos' policies: a number, or the smallest and the largest."""
    return " to ".join(dict.fromkeys(map(str, report["least_rows"])))


def small_silos(report: SiloFacts) -> list[str]:
    """Return the silos with too few training rows; none for the published rule, which uses no number of rows."""
    if report["verdict"] == "paper":
        return []
    return [record["client"] for record in report["rest"] if record["rows"][0] < MIN_ROWS]


def left_out(report: SiloFacts) -> list[str]:
    """Return the silos without any verdict.

    All their pairs are undetermined, or they are small and groups are compared.
    """
    if report["pairs_of"] == "groups":
        return small_silos(report)
    undetermined, determined = (
        {name for pair in report["pairs"] if pair["undetermined"] is state for name in (pair["first"], pair["second"])}
        for state in (True, False)
    )
    return [client for client in report["clients"] if client in undetermined - determined]


def no_verdict(report: SiloFacts) -> str:
    """Return the sentence for a report in which all pairs are undetermined."""
    reasons = [pair["why"] for pair in report["pairs"]]
    if set(reasons) == {"rows"}:
        seen = ", as far as the noise shows" if report["noise"] else ""
        return f"No silos could be compared: no two have {MIN_ROWS} training rows or more{seen}."
    clauses = [
        f"in {counted(reasons.count(why), 'pair')} {reason_clause(why, report, 'both silos')}"
        for why in REASONS
        if why in reasons
    ]
    return f"No silos could be compared: {'; '.join(clauses)}."


def reasons_of(pairs: Sequence[PairRecord], report: SiloFacts) -> list[str]:
    """Return a sentence for each reason of these pairs."""
    reasons = [pair["why"] for pair in pairs]
    return [
        f"{counted(reasons.count(why), 'pair')} of silos could not be compared: {reason_clause(why, report, 'both silos')}."
        for why in REASONS
        if why in reasons
    ]


def _rows_needed(report: DiagnosisFacts) -> str:
    return f"{gaussian_mechanism.MIN_NOISY_ROWS} rows" if report["noise"] else f"{least_rows(report)} different rows"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "each have"

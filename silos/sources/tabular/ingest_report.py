"""The notes for the user about what was read of a table."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from silos.dataset import SPLITS, Rows
from silos.errors import shown, some
from silos.params_section import Fill
from silos.sources.source_checks import named_splits
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.column_rules import Rule, looks_like_unit
from silos.sources.tabular.table_reader import TableSample

_NAMES = 4  # that a note lists at most


def ingest_notes(
    sample: TableSample,
    source: Table,
    columns: Sequence[Column],
    label: Column,
    rules: Sequence[Rule],
    row_numbers: Sequence[Column],
    dropped: np.ndarray,
    lost: Sequence[str],
    rows: Rows,
) -> tuple[str, ...]:
    """Summarise rows, features, the label and clients, and what is left out, missing or almost equal.

    dropped: (rows in the file,) bool; lost: the clients, domains and classes of which all rows are dropped.
    """
    separated = {"": "", "\t": ", separated by tabs"}.get(sample.separator, f", separated by {sample.separator!r}")
    return (
        f"{sample.name}: {_count(sample.rows, 'row')} of {_count(len(sample.columns), 'column')}{separated}",
        f"features: {rows.x.shape[1]:,} = {' + '.join(_feature_counts(columns))}",
        # the label of a regression is a number as well, which may be odd or a code for a missing value
        *_odd_number_notes([*columns, label] if rows.task == "regression" else columns),
        *_doubtful_text_notes(source, columns),
        *missing_code_notes(
            source, [*columns, label] if rows.task == "regression" else columns, bool(sample.separator)
        ),
        *_left_out_notes(source, row_numbers),
        *_unit_notes(sample, source),
        *_missing_notes(columns, rules, dropped, None if source.client is None else sample.column(source.client)),
        *([f"missing: no row is left of {some(lost, _NAMES)}"] if lost else []),
        *_split_notes(source, columns, rows),
        _label_note(source, rows),
        *(
            []
            if rows.client is None
            else [f"client: {_quoted_name(source.client)}, {_count(len(np.unique(rows.client)), 'value')}"]
        ),
        *_near_duplicate_notes(source, columns, rows),
    )


def _feature_counts(columns: Sequence[Column]) -> Iterator[str]:
    for kind, word in (("number", "number"), ("boolean", "true or false")):
        of_kind = [column for column in columns if column.kind == kind]
        if of_kind:
            counted = _count(len(of_kind), word) if kind == "number" else f"{len(of_kind):,} {word}"
            yield f"{counted} ({_list_columns(of_kind)})"
    texts = [column for column in columns if column.kind == "text"]
    if texts:
        count = sum(len(column.used) + bool(column.missing.any()) for column in texts)
        yield f"{count:,} one-hot ({_list_columns(texts)})"


def _odd_number_notes(columns: Sequence[Column]) -> list[str]:
    """List the columns of numbers that are not written plainly, each with an example."""
    odd = [column for column in columns if column.kind == "number" and column.detail]
    return [f"read as numbers: {_list_columns(odd, lambda column: f' ({column.detail})')}"] if odd else []


def _doubtful_text_notes(source: Table, columns: Sequence[Column]) -> list[str]:
    """List the categories that may be missing values, and those of a Parquet file that may be numbers."""
    texts = [column for column in columns if column.kind == "text" and column.name not in source.categorical]
    absent = [column for column in texts if source.na_values is None and column.na_texts]
    numbers = [column for column in texts if column.detail in ("number", "mixed")]
    quoted: Callable[[Column], str] = lambda column: f" ({', '.join(column.na_texts)})"  # noqa: E731
    return [
        *(
            [f"categories that may be missing values (data.source.na_values): {_list_columns(absent, quoted)}"]
            if absent
            else []
        ),
        *(
            [f"categories that may be numbers, since the file stores them as text: {_list_columns(numbers)}"]
            if numbers
            else []
        ),
    ]


def missing_code_notes(source: Table, columns: Sequence[Column], is_text: bool) -> list[str]:
    """List the numbers that may be missing values, such as -999, unless `na_values` says what is missing.

    is_text: whether the file holds texts, so that `na_values` applies.
    """
    coded = [column for column in columns if column.missing_code]
    if not coded or source.na_values is not None:
        return []
    fix = "data.source.na_values, before the first report" if is_text else "store them as null"
    return [f"numbers that may be missing values ({fix}): {_list_columns(coded, _describe_code)}"]


def _describe_code(column: Column) -> str:
    assert column.missing_code is not None
    texts, share = column.missing_code
    return f" ({', '.join(texts)} in {100 * share:.2g} % of rows)"


def _left_out_notes(source: Table, row_numbers: Sequence[Column]) -> list[str]:
    parts = [f"{_quoted_name(name)} (drop)" for name in source.drop]
    parts += [f"{_quoted_name(column.name)} (no name)" for column in row_numbers]
    return [f"left out: {some(parts, _NAMES)}"] if parts else []


def _unit_notes(sample: TableSample, source: Table) -> list[str]:
    """Name columns that are left out and may be the unit of rows, if the source has none."""
    if source.unit is not None:
        return []
    client = None if source.client is None else sample.column(source.client)
    dropped = [column for name in source.drop if (column := sample.column(name)) is not None]
    units = [column for column in dropped if looks_like_unit(column, client)]
    return [
        f"rows may not be independent: {_quoted_name(column.name)} has {_count(len(column.used), 'value')} in "
        f"{_count(int((~column.missing).sum()), 'row')}; if it names patients or the like, name it under data.source.unit, "
        "not under drop"
        for column in units[:1]
    ]


def _split_notes(source: Table, columns: Sequence[Column], rows: Rows) -> list[str]:
    """Count the rows of each split that the source marks, or name a feature that marks splits."""
    if rows.split is not None:
        counts = [f"{int((rows.split == name).sum()):,} {name}" for name in SPLITS if (rows.split == name).any()]
        return [f"split: {_quoted_name(source.split)}, {', '.join(counts)}"]
    marks = [column for column in columns if column.kind == "text" and "train" in (named_splits(_used(column)) or ())]
    return [
        f"{_quoted_name(column.name)} is a feature, and rows are split at random; if it marks training and test rows, name "
        "it under data.source.split"
        for column in marks
    ]


def _used(column: Column) -> list[str]:
    return [column.texts[code] for code in column.used]


def _missing_notes(
    columns: Sequence[Column], rules: Sequence[Rule], dropped: np.ndarray, client: Column | None
) -> list[str]:
    parts = []
    if dropped.any():
        mostly = "" if client is None else _mostly_dropped(client, dropped)
        parts.append(f"{int(dropped.sum()):,} of {_count(len(dropped), 'row')} dropped{mostly}")
    filled = [c for c, rule in zip(columns, rules, strict=True) if isinstance(rule, Fill) and c.missing.any()]
    numbers = [column for column in filled if column.kind != "text"]
    texts = [column for column in filled if column.kind == "text"]
    if numbers:
        parts.append(f"{_list_columns(numbers, _missing_count)} filled in")
    if texts:
        parts.append(f"{_list_columns(texts, _missing_count)} as a separate category")
    return [f"missing: {'; '.join(parts)}"] if parts else []


_TIMES_AS_MANY = 2  # as of all rows: then a silo's dropped rows are hardly missing at random


def _mostly_dropped(client: Column, dropped: np.ndarray) -> str:
    """Name the clients that lose a far larger share of rows than all do, with their numbers."""
    rows = np.bincount(client.codes[~client.missing], minlength=len(client.texts))
    lost = np.bincount(client.codes[~client.missing & dropped], minlength=len(client.texts))
    share = lost / np.maximum(rows, 1)
    # ten rows or more, since a small silo loses some by chance
    found = [i for i in np.argsort(-share, kind="stable").tolist() if lost[i] >= 10]
    found = [i for i in found if share[i] > _TIMES_AS_MANY * dropped.mean()]
    named = [f"{lost[i]:,} of {rows[i]:,} of {_quoted_name(client.texts[i])}" for i in found]
    return f", {some(named, _NAMES)}" if named else ""


def _missing_count(column: Column) -> str:
    return f" ({int(column.missing.sum()):,})"


def _label_note(source: Table, rows: Rows) -> str:
    label = f"label: {_quoted_name(source.label)}"
    if rows.task == "regression":
        return f"{label}, a number to predict"
    counts = np.bincount(rows.y, minlength=len(rows.classes))
    classes = [f"{_quoted_name(name)} ({count:,})" for name, count in zip(rows.classes, counts.tolist(), strict=True)]
    return f"{label}, {_count(len(classes), 'class')}: {some(classes, 2 * _NAMES)}"


def _near_duplicate_notes(source: Table, columns: Sequence[Column], rows: Rows) -> list[str]:
    """List values that are kept apart although they are one number, or differ only in case or Unicode form."""
    texts_of = {column.name: _used(column) for column in columns if column.kind == "text"}
    texts_of |= {"the header": [column.name for column in columns], source.label: rows.classes}
    for name, values in ((source.client, rows.client), (source.domain, rows.domain)):
        if name is not None and values is not None:
            texts_of[name] = np.unique(values).tolist()
    pairs = []
    for name, texts in texts_of.items():
        first: dict[str | float, str] = {}
        for text in sorted(texts):
            if (other := first.setdefault(_normalised(text), text)) != text:
                composed = unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", text)
                quoted, second = (shown(ascii(value) if composed else repr(value), 40) for value in (other, text))
                pairs.append(f"{quoted} and {second} in {_quoted_name(name)}")
    return (
        [f"values that differ only in spelling (correct them if they mean the same): {some(pairs, _NAMES)}"]
        if pairs
        else []
    )


def _normalised(text: str) -> str | float:
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    try:
        return float(folded.replace("\u2212", "-").replace(",", "."))
    except ValueError:
        return folded


def _list_columns(columns: Sequence[Column], more: Callable[[Column], str] | None = None) -> str:
    return some([f"{_quoted_name(column.name)}{more(column) if more else ''}" for column in columns], _NAMES)


def _quoted_name(name: object) -> str:
    """Return a name, quoted if it could be mistaken for a part of the note."""
    text = str(name)
    return shown(
        text if text.isprintable() and not set(text) & set(",;:()'\"") and text.strip() == text else repr(text), 30
    )


def _count(count: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{'' if count == 1 else plural}"

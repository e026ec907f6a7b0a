"""What was read of a table, in a few lines for a person."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from silos.dataset import Rows, some
from silos.errors import shown
from silos.sources.source_params import Fill, Table
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.missing_values import Rule
from silos.sources.tabular.table_reader import TableSample

_NAMES = 4  # that a line shows


def notes_of(
    look: TableSample,
    source: Table,
    columns: Sequence[Column],
    label: Column,
    rules: Sequence[Rule],
    numbering: Sequence[Column],
    dropped: np.ndarray,
    made: Rows,
) -> tuple[str, ...]:
    """Rows, features, what is left out, missing or alike, the label, the clients. dropped: (rows in the file,) bool."""
    separated = {"": "", "\t": ", separated by tabs"}.get(look.separator, f", separated by {look.separator!r}")
    return (
        f"{look.name}: {_count(look.rows, 'row')} of {_count(len(look.columns), 'column')}{separated}",
        f"features: {made.x.shape[1]:,} = {' + '.join(_kinds(columns))}",
        *_odd_numbers([*columns, label] if made.task == "regression" else columns),
        *_odd_texts(source, columns),
        *_left_out(source, numbering),
        *_missing(columns, rules, dropped),
        _label(source, made),
        *(
            []
            if made.client is None
            else [f"client: {_shown(source.client)}, {_count(len(np.unique(made.client)), 'value')}"]
        ),
        *_alike(source, columns, made),
    )


def _kinds(columns: Sequence[Column]) -> Iterator[str]:
    for kind, word in (("number", "number"), ("boolean", "true or false")):
        held = [column for column in columns if column.kind == kind]
        if held:
            counted = _count(len(held), word) if kind == "number" else f"{len(held):,} {word}"
            yield f"{counted} ({_some(held)})"
    texts = [column for column in columns if column.kind == "text"]
    if texts:
        made = sum(len(column.used) + bool(column.missing.any()) for column in texts)
        yield f"{made:,} one-hot ({_some(texts)})"


def _odd_numbers(columns: Sequence[Column]) -> list[str]:
    """The columns of numbers that are not written plainly, each with one as it was read."""
    odd = [column for column in columns if column.kind == "number" and column.described]
    return [f"read as numbers: {_some(odd, lambda column: f' ({column.described})')}"] if odd else []


def _odd_texts(source: Table, columns: Sequence[Column]) -> list[str]:
    """The categories that may be missing values, and those of a Parquet file that may be numbers."""
    texts = [column for column in columns if column.kind == "text" and column.name not in source.categorical]
    absent = [column for column in texts if source.na_values is None and column.na_texts]
    numbers = [column for column in texts if column.described in ("number", "mixed")]
    quoted: Callable[[Column], str] = lambda column: f" ({', '.join(column.na_texts)})"  # noqa: E731
    return [
        *(
            [f"categories that may be missing values (data.source.na_values): {_some(absent, quoted)}"]
            if absent
            else []
        ),
        *([f"categories that may be numbers, being text in the file: {_some(numbers)}"] if numbers else []),
    ]


def _left_out(source: Table, numbering: Sequence[Column]) -> list[str]:
    parts = [f"{_shown(name)} (drop)" for name in source.drop]
    parts += [f"{_shown(column.name)} (no name)" for column in numbering]
    return [f"left out: {some(parts, _NAMES)}"] if parts else []


def _missing(columns: Sequence[Column], rules: Sequence[Rule], dropped: np.ndarray) -> list[str]:
    parts = []
    if dropped.any():
        parts.append(f"{int(dropped.sum()):,} of {_count(len(dropped), 'row')} dropped")
    filled = [c for c, rule in zip(columns, rules, strict=True) if isinstance(rule, Fill) and c.missing.any()]
    numbers = [column for column in filled if column.kind != "text"]
    own = [column for column in filled if column.kind == "text"]
    if numbers:
        parts.append(f"{_some(numbers, _gaps)} filled in")
    if own:
        parts.append(f"{_some(own, _gaps)} as a category of its own")
    return [f"missing: {'; '.join(parts)}"] if parts else []


def _gaps(column: Column) -> str:
    return f" ({int(column.missing.sum()):,})"


def _label(source: Table, made: Rows) -> str:
    label = f"label: {_shown(source.label)}"
    if made.task == "regression":
        return f"{label}, a number to predict"
    counts = np.bincount(made.y, minlength=len(made.classes))
    each = [f"{_shown(name)} ({count:,})" for name, count in zip(made.classes, counts.tolist(), strict=True)]
    return f"{label}, {_count(len(each), 'class')}: {some(each, 2 * _NAMES)}"


def _alike(source: Table, columns: Sequence[Column], made: Rows) -> list[str]:
    """Name values that are kept apart though they are one number or differ in case or in the form of Unicode only."""
    held = {column.name: [column.texts[code] for code in column.used] for column in columns if column.kind == "text"}
    held |= {"the header": [column.name for column in columns], source.label: made.classes}
    for name, values in ((source.client, made.client), (source.domain, made.domain)):
        if name is not None and values is not None:
            held[name] = np.unique(values).tolist()
    found = []
    for name, texts in held.items():
        first: dict[str | float, str] = {}
        for text in sorted(texts):
            if (other := first.setdefault(_folded(text), text)) != text:
                composed = unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", text)
                first_one, second = (shown(ascii(each) if composed else repr(each), 40) for each in (other, text))
                found.append(f"{first_one} and {second} in {_shown(name)}")
    return [f"kept apart, write alike what is the same: {some(found, _NAMES)}"] if found else []


def _folded(text: str) -> str | float:
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    try:
        return float(folded.replace("\u2212", "-").replace(",", "."))
    except ValueError:
        return folded


def _some(columns: Sequence[Column], more: Callable[[Column], str] | None = None) -> str:
    return some([f"{_shown(column.name)}{more(column) if more else ''}" for column in columns], _NAMES)


def _shown(name: object) -> str:
    """A name as it is, or quoted where it could be mistaken for a part of the line."""
    text = str(name)
    return shown(
        text if text.isprintable() and not set(text) & set(",;:()'\"") and text.strip() == text else repr(text), 30
    )


def _count(count: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{'' if count == 1 else plural}"

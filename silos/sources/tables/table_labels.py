"""The label of a table: classes by the text that they have in the file, or numbers to be predicted."""

import numpy as np

from silos.errors import UserError, shown
from silos.sources.source_names import first_fault
from silos.sources.tables.column_kinds import ODD_NUMBERS, Column
from silos.sources.tables.look_at import Look
from silos.sources.tables.one_hot import ordered
from silos.sources.tables.usable_columns import fault_of_numbers, must_be_single

_FEW = 20  # classes that any table may have


def must_be_targets(look: Look, label: Column) -> None:
    """UserError where a label holds no numbers that can be predicted."""
    if label.kind in ODD_NUMBERS:
        raise UserError(
            f"{look.name}: the label {shown(repr(label.name))} {fault_of_numbers(look, label)}, or drop `task: regression` "
            "for classes."
        )
    if label.kind not in ("number", "boolean"):
        raise UserError(
            f"{look.name}: the label {shown(repr(label.name))} holds values such as {label.example}, and a regression needs "
            "plain numbers; drop `task: regression` for classes."
        )
    must_be_single(look, "label", label)


def classes_of(name: str, label: Column) -> tuple[list[str], np.ndarray]:
    """The sorted class names and each row's code: (rows,) int64; UserError where they look like no classes."""
    used, where = label.used, f"{name}: the label {shown(repr(label.name))}"
    broken = used[label.numbers[used] != np.floor(label.numbers[used])]
    if len(used) > _FEW and label.kind == "number" and len(broken):
        raise UserError(
            f"{where} looks like a regression ({len(used):,} values, such as {shown(label.texts[broken[0]], 40)}); add "
            "`task: regression` to data.source in params.yaml, or give whole numbers or text as classes."
        )
    if len(used) > max(_FEW, len(label.codes) // 2):
        raise UserError(
            f"{where} has {len(used):,} different values in {len(label.codes):,} rows, which are no classes; name the "
            "column that holds the classes, or add `task: regression` to data.source in params.yaml for a number."
        )
    texts = [label.texts[code] for code in used]
    fault = first_fault(np.array(texts))
    if fault:
        raise UserError(f"{where} {shown(repr(texts[fault[0]]), 40)} {fault[1]}.")
    classes = ordered(texts)
    places = {text: place for place, text in enumerate(classes)}
    return classes, np.array([places.get(text, -1) for text in label.texts], np.int64)[label.codes]

"""Sentences on what is plainly so in the data, and what to do about it."""

from collections.abc import Sequence

from flows.diagnosis.text.phrases import label_is, listed
from models.metrics.task_metrics import format_number
from tasks.tracking.result_types.diagnosis_result import DataFault, SiloFacts, UnitFault

_MAX_FAULTS = 3  # of a kind, with a sentence each
_KINDS = ("persons", "shared", "class", "empty", "constant", "unit")
_MORE = {
    "shared": "more pairs of silos may hold the same rows",
    "class": "more labels are absent at some silos",
    "empty": "more features have no value at some silos",
    "constant": "more features are constant at some silos",
    "unit": "more features seem to have another unit at some silos",
}


def fault_sentences(report: SiloFacts) -> list[str]:
    """Return the sentences that come before all others, a few of each kind."""
    lines = []
    for kind in _KINDS:
        faults = [fault for fault in report["data_faults"] if fault["what"] == kind]
        lines += [_sentence(fault, report) for fault in faults[:_MAX_FAULTS]]
        if len(faults) > _MAX_FAULTS:
            lines.append(f"{len(faults) - _MAX_FAULTS} {_MORE[kind]}, which report.json names.")
    return lines


def fault_steps(faults: Sequence[DataFault]) -> list[str]:
    """Return what to do about these faults."""
    persons = [fault for fault in faults if fault["what"] == "persons"]
    shared = sorted({silo for fault in faults if fault["what"] == "shared" for silo in fault["silos"]})
    empty = [fault for fault in faults if fault["what"] == "empty"][:_MAX_FAULTS]
    constant = [fault for fault in faults if fault["what"] == "constant"][:_MAX_FAULTS]
    steps = ["Name the column of persons or machines under data.source.unit, partition, and diagnose again."] * len(
        persons
    )
    if shared:
        steps.append(f"Look for rows that {listed(shared)} have in common, keep each in one silo, and diagnose again.")
    steps += [
        f"Fill {fault['names'][0]} in at {listed(fault['silos'])}, or leave the column out at all silos."
        for fault in empty
    ]
    return steps + [
        f"Check at {listed(fault['silos'])} why {fault['names'][0]} has one value, such as a default."
        for fault in constant
    ]


def unit_step(fault: UnitFault) -> str:
    """Return how to convert a feature at the silos that seem to record it in another unit."""
    scale, offset = fault["scale"], fault["offset"]
    steps = []
    if scale >= 1 and offset:
        steps.append(f"{'subtract' if offset > 0 else 'add'} {abs(offset):g}")
    if scale != 1:
        steps.append(f"divide by {_number(scale)}" if scale > 1 else f"multiply by {_number(1 / scale)}")
    if scale < 1 and offset:
        steps.append(f"{'subtract' if offset > 0 else 'add'} {abs(offset / scale):g}")
    return (
        f"Check the unit of {fault['names'][0]} at {listed(fault['silos'])}, convert it there if it is another one "
        f"({', and '.join(steps)}), and diagnose again."
    )


def _unit_sentence(fault: UnitFault) -> str:
    name, silos = fault["names"][0], listed(fault["silos"])
    several = "means" if len(fault["means"]) > 1 else "mean"
    shown = [*dict.fromkeys(format_number(mean, 4) for mean in fault["means"])]
    means = f"{several} {listed(shown)} against {format_number(fault['usual_mean'], 4)}"
    if fault["unit"]:
        return f"{name} at {silos} looks like {fault['unit']} where most silos have {fault['usual_unit']} ({means})."
    scale = fault["scale"]
    size = f"{_number(scale)} times as large" if scale > 1 else f"1/{_number(1 / scale)} as large"
    return f"{name} is about {size} at {silos} as at most silos ({means}), as if it had another unit."


def _number(factor: float) -> str:
    return format_number(factor, 2 if factor < 1000 else 7)


def _sentence(fault: DataFault, report: SiloFacts) -> str:
    silos, verb = listed(fault["silos"]), "has" if len(fault["silos"]) == 1 else "have"
    if fault["what"] == "persons":
        return (
            f"At {silos}, rows agree in several features as visits of one person do; differences may then be chance. Each "
            "row counts as a person of its own, until data.source.unit names the column of persons."
        )
    if fault["what"] == "shared":
        return f"{silos} are more alike than chance allows, as if they held some of the same rows."
    if fault["what"] == "class":
        return f"{silos} {verb} no row in which {label_is(report['classes'][fault['names'][0]], report)}."
    if fault["what"] == "empty":
        return f"{fault['names'][0]} has no value at {silos}."
    if fault["what"] == "unit":
        return _unit_sentence(fault)
    values = " and ".join(dict.fromkeys(format_number(value, 4) for value in fault["values"]))
    return f"{fault['names'][0]} is constant at {silos} ({values})."

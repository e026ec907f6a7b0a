"""Which silos a diagnosis against an earlier version shows to have shifted, which it could not check, and what it misses."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from flows.diagnosis.new_rows import described_features
from flows.diagnosis.text.caveats import of_power, unseen_between
from flows.diagnosis.text.findings import of_version
from flows.diagnosis.text.phrases import joined, type_phrases
from models.diagnosis.name_shift_types import GRADES
from silos.errors import counted
from tasks.tracking.result_types.diagnosis_records import Grades, NewRowsRecord, SiloRecord
from tasks.tracking.result_types.diagnosis_result import VersionResult
from tasks.tracking.result_types.registry_records import ShiftedSilo

ALL_ROWS: Literal["all"] = "all"
NEW_ROWS: Literal["new"] = "new"
"""Which rows of a silo shifted: its whole versions differ, or the rows that came since differ from its earlier ones."""

_RANK: dict[str | None, int] = {grade: rank for rank, grade in enumerate((*GRADES, None))}  # an undefined grade counts


def shifted_silos(diagnosis: VersionResult | None, least: str, changed: Mapping[str, str]) -> list[ShiftedSilo]:
    """Return the changed silos whose shift has at least this grade, with each kind's grade; an undefined grade counts.

    A silo's whole versions are judged, and its new rows by themselves. If both shifted, the stronger shift is returned.
    A silo that did not change may still differ from itself under noise, which is drawn for each version.
    """
    if diagnosis is None:
        return []
    records: list[tuple[SiloRecord | NewRowsRecord, Grades, Literal["all", "new"], Callable[[], str]]] = []
    for pair in diagnosis["pairs"]:
        grades = {kind: pair["strength"]["grades"][kind] for kind in pair["types"]}
        records.append((pair, grades, ALL_ROWS, partial(_in_all_rows, pair, diagnosis)))
    for new in diagnosis["new_rows"]["silos"]:
        records.append((new, new["grades"], NEW_ROWS, partial(_in_new_rows, new, diagnosis)))
    found: dict[str, ShiftedSilo] = {}
    strongest: dict[str, int] = {}
    for record, kinds, rows, words in records:
        client, rank = record["client"], max((_RANK[grade] for grade in kinds.values()), default=-1)
        if rank >= _RANK[least] and rank > strongest.get(client, -1):
            defined = [grade for grade in kinds.values() if grade is not None]
            worst = max(defined, key=GRADES.index, default=None)
            found[client] = {
                "client": client,
                "kinds": kinds,
                "grade": worst,
                "features": [*record["features"]],
                "rows": rows,
                "words": words(),
                "new_rows": int(record["rows"][0]) if rows == NEW_ROWS else None,
            }
            strongest[client] = rank
    order = dict.fromkeys(record["client"] for record, *_ in records)
    return [found[client] for client in order if client in found and client in changed]


def _in_all_rows(record: SiloRecord, diagnosis: VersionResult) -> str:
    """Say what `siloflow diagnose --against` says of the silo."""
    said = of_version(diagnosis, record).text.removeprefix(f"{record['client']}: ").removesuffix(".")
    return said or "inputs hardly overlap with those of before, so it is unknown whether the rule is the same"


def _in_new_rows(record: NewRowsRecord, diagnosis: VersionResult) -> str:
    """Say which types of a silo's new rows differ from its earlier rows, and in which features by how much."""
    differ = joined([type_phrases(diagnosis)[kind] for kind in record["types"]])
    most = f", most in {joined(described_features(record))}" if record["features"] else ""
    return f"in its {counted(record['rows'][0], 'new training row')}, {differ}{most}"


def unchecked_silos(diagnosis: VersionResult | None, changed: Mapping[str, str]) -> dict[str, str]:
    """Return why changed silos were not checked, or only in part, by silo; `changed` says how each silo changed.

    A silo that did not change needs no check.
    """
    found = {
        client: "it is new, so there is no earlier version of it" for client, how in changed.items() if how == "added"
    }
    if diagnosis is None:
        return found
    new = diagnosis["new_rows"]
    judged = {record["client"] for record in new["silos"] if not record["undetermined"]}
    notes = {pair["client"]: pair["note"].removeprefix("Not compared: ") for pair in diagnosis["pairs"] if pair["note"]}
    refused = {
        client: f"it did not report: {why.removeprefix(f'client {client}: ')}"
        for client, why in diagnosis["refused"].items()
    }
    for client, why in sorted({**notes, **refused}.items()):
        found[client] = f"only its new rows were checked; of the whole version {why}" if client in judged else why
    reasons = {client: new["reason"] for client, how in changed.items() if how == "changed" and new["reason"]}
    few = {record["client"]: "they are too few to decide" for record in new["silos"] if record["undetermined"]}
    for client, why in sorted({**reasons, **few, **new["refused"]}.items()):
        found.setdefault(client, f"only its whole version was checked, not its new rows by themselves: {why}")
    return {client: why for client, why in found.items() if client in changed}


def unseen_shifts(diagnosis: VersionResult | None, changed: Mapping[str, str]) -> list[str]:
    """Return sentences on the least shift of changed silos that would have been noticed, in whole versions and new rows."""
    if diagnosis is None:
        return []
    if diagnosis["verdict"] != "guarded" or diagnosis["noise"]:
        return ["How small a shift may be missed is known only with diagnose.verdict: guarded, without noise."]
    of_changed = diagnosis.copy()
    of_changed["pairs"] = [pair for pair in diagnosis["pairs"] if pair["client"] in changed]
    return [*of_power(of_changed), *_unseen_in_new_rows(diagnosis)]


def _unseen_in_new_rows(diagnosis: VersionResult) -> list[str]:
    records = [record for record in diagnosis["new_rows"]["silos"] if not record["undetermined"]]
    if not records:
        return []
    fewest = min(records, key=lambda record: record["worth"][0])
    unseen = unseen_between(diagnosis, (fewest["worth"][0], fewest["worth"][1]))
    return [f"In {fewest['rows'][0]:,} new training rows of {fewest['client']}, {unseen}"]

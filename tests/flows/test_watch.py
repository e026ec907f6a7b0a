"""Which shifts make `watch` train again, and how they are named."""

from typing import Any

import pytest

from flows.watch import shift_text, shifted_silos


def pair(client: str, **grades: str | None) -> dict[str, Any]:
    """A silo's record in a diagnosis against a version: what differs, and by how much."""
    types = ("feature", "label", "concept")
    strength = {"grades": {kind: grades.get(kind, "critical") for kind in types}}
    return {"client": client, "types": list(grades), "strength": strength, "features": {"age": 0.5}}


DIAGNOSIS = {
    "pairs": [
        pair("same"),
        pair("faint", feature="negligible"),
        pair("moved", label="negligible", concept="significant"),
        pair("apart", concept=None),
    ]
}


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ("negligible", ["faint", "moved", "apart"]),
        ("moderate", ["moved", "apart"]),
        ("significant", ["moved", "apart"]),
        ("critical", ["apart"]),
    ],
)
def test_silos_shift_by_their_strongest_kind_and_one_without_a_grade_counts(least: str, expected: list[str]) -> None:
    found = shifted_silos(DIAGNOSIS, least)
    assert [silo["client"] for silo in found] == expected
    assert all(silo["grade"] == {"faint": "negligible", "moved": "significant"}.get(silo["client"]) for silo in found)


def test_the_text_names_each_silo_with_the_grade_of_each_kind() -> None:
    text = "faint (feature: negligible), moved (label: negligible, concept: significant), apart (concept: no grade)"
    assert shift_text(shifted_silos(DIAGNOSIS, "negligible")) == text
    assert shifted_silos(None, "negligible") == []

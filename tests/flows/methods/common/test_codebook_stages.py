"""What a stage's end costs and tells where a round calls a few of many clients."""

import pytest

from flows.methods.common import codebook_stages
from flows.methods.references.uefl_authors import UEFLAuthors
from flows.methods.uefl import UEFL

NAMES = [f"c{number}" for number in range(30)]
OPTIONS = {"words": 4, "first_rounds": 1, "more_rounds": 1, "tolerance": -1.0, "stages": 9}
CALLED = {1: ("c1", "c4"), 2: ("c4", "c9"), 3: ("c7", "c1")}


@pytest.mark.parametrize("page", [UEFL(arm="paper", **OPTIONS), UEFLAuthors(**OPTIONS)], ids=["uefl", "authors"])
def test_a_stages_end_looks_at_those_that_ever_took_part_and_has_a_row_of_those_that_do(
    page, make_problem, play, monkeypatch
):
    looked, count = [], codebook_stages.count_context
    monkeypatch.setattr(codebook_stages, "count_context", lambda *args: looked.append({*args[1]}) or count(*args))
    setup = make_problem(dict.fromkeys(NAMES, 12), batch=100)
    absent = {number: [c for c in NAMES if c not in called] for number, called in CALLED.items()}
    played = play(page, setup, [*CALLED], absent=absent)
    for report, (number, called) in zip(played.reports, CALLED.items(), strict=True):
        before = {c for at, clients in CALLED.items() if at <= number for c in clients}
        assert report.client_metrics["words"].keys() == {*called}
        assert report.metrics["words/own"] >= 4 * len(before)
        assert all({*clients} <= {*called} for column, clients in report.client_metrics.items()), "a row of nobody else"
    assert set().union(*looked) == {c for called in CALLED.values() for c in called}

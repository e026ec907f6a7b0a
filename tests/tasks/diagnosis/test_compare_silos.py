"""The server compares all pairs of what clients told, or groups of clients, and looks again at what models foresee."""

from dataclasses import replace

import numpy as np
import pytest

from flows.diagnose import refine
from models.diagnosis.fomichev_distances import Readings
from publications.synthetic_pairs.fixed_pairs import SixFeatures
from silos.client_store import ClientStore
from tasks.diagnosis import compare_silos as room
from tasks.diagnosis.compare_silos import compare_silos
from tasks.diagnosis.report_predictions import doubtful_pairs, refine_pairs
from tasks.execution.task_runner import PlainRunner
from tasks.messages.statistics_messages import PredictedCounts

pytestmark = pytest.mark.slow

BOUNDED = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4}]
SIX = [
    {"name": f"x{at}", "low": -8, "high": 8}
    if at != 4
    else {"name": "x4", "kind": "categorical", "categories": [1, 2, 3]}
    for at in range(6)
]
LAWS = {"plain": (2000, SixFeatures()), "swapped": (1000, SixFeatures(added=(1, 0), renamed=(0, 2, 1)))}
LAWS |= {"wide": (1000, SixFeatures(width=1.8))}
READINGS = Readings(grid="federation")


def rows(seed, count, moved=0.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 2)) + moved, np.arange(count) % 2


def compared(found):
    return compare_silos.fn(found.answers.messages, found.question, "guarded", READINGS, print)


def test_a_client_of_which_nothing_can_be_said_is_in_a_group_of_its_own(silos_of, asked):
    own = {"a": rows(0, 300), "b": rows(1, 15), "c": rows(2, 200), "d": rows(3, 250, moved=1.5)}
    found = compared(asked(silos_of(own, features=BOUNDED)))
    assert found.pairs.verdicts.undetermined.tolist() == [True, False, False, True, True, False]
    assert found.groups == [[0, 2], [1], [3]]
    assert found.pairs.rows.tolist() == [[300, 15], [300, 200], [300, 250], [15, 200], [15, 250], [200, 250]]
    assert found.rest.rows.tolist() == [[300, 465], [15, 750], [200, 565], [250, 515]]


@pytest.mark.parametrize("noise", [None, {"epsilon": 2.0}])
def test_of_too_many_clients_groups_are_compared_of_unequal_sizes_and_under_noise_too(
    noise, silos_of, asked, monkeypatch
):
    monkeypatch.setattr(room, "MOST_PAIRS", 0)
    sizes = {"a": 500, "b": 4000, "c": 900, "d": 500, "e": 4000}
    own = {name: rows(at, n, moved=1.0 * (name in "bd")) for at, (name, n) in enumerate(sizes.items())}
    found = compared(asked(silos_of(own, features=BOUNDED), noise=noise))
    assert found.of_groups
    assert found.groups == [[0, 2, 4], [1, 3]]
    assert found.pairs.verdicts.types.tolist() == [[True, False, False]]
    if noise is None:
        assert found.pairs.rows.tolist() == [[5400, 4500]]


@pytest.fixture(scope="module")
def keep():
    """What is found once for all tests of the module."""
    return {}


@pytest.fixture
def looked(keep, silos_of, asked, tmp_path, monkeypatch):
    """Of three clients: what is found at first, the messages, whom each was asked about, and what models foresee."""
    if not keep:
        given = {}
        silos = silos_of(
            {c: law(np.random.default_rng([4, at]), n) for at, (c, (n, law)) in enumerate(LAWS.items())}, features=SIX
        )
        first = asked(silos, keeps="own")
        found = compared(first)

        class Hears(PlainRunner):
            def run_on_server(self, task, *args):
                given.update(zip(("comparison", "messages", "query", "owners", "predictions"), args, strict=True))
                return super().run_on_server(task, *args)

        private = ClientStore(str(tmp_path / "private" / "own"))
        refine(Hears(), silos, private, first.question, first.answers, found)
        keep.update(given)
    return keep


def test_only_pairs_that_differ_in_inputs_and_in_rule_are_doubted(looked):
    found = looked["comparison"]
    assert doubtful_pairs(found).tolist() == [0, 1, 2]
    types = np.array([[True, False, False], [False, False, True], [True, True, True]])
    other = replace(found, pairs=replace(found.pairs, verdicts=replace(found.pairs.verdicts, types=types)))
    assert doubtful_pairs(other).tolist() == [2]
    assert doubtful_pairs(replace(other, of_groups=True)).tolist() == []


def test_a_second_look_explains_the_pair_whose_inputs_alone_differ_whatever_the_order_of_answers(looked):
    found, foreseen = looked["comparison"], looked["predictions"]
    again = refine_pairs.fn(**looked)
    assert again.pairs.verdicts.types[:, 2].tolist() == [True, False, True]
    np.testing.assert_array_equal(again.pairs.parts[1], found.pairs.inputs[1])
    np.testing.assert_array_equal(again.pairs.parts[[0, 2]], found.pairs.parts[[0, 2]])
    turned = {c: tuple(reversed(of)) for c, of in looked["owners"].items()}
    other = [PredictedCounts((c,), {c: m.counts[c].flip(0)}) for m in foreseen for c in reversed(m.clients)]
    mixed = refine_pairs.fn(**{**looked, "owners": turned, "predictions": other})
    np.testing.assert_array_equal(mixed.pairs.verdicts.types, again.pairs.verdicts.types)
    np.testing.assert_array_equal(mixed.pairs.parts, again.pairs.parts)


@pytest.mark.parametrize("silent", LAWS)
def test_pairs_of_a_client_that_took_no_part_stay_as_they_were_and_the_others_are_looked_at(silent, looked):
    found, again = looked["comparison"], refine_pairs.fn(**looked)
    heard = [PredictedCounts((c,), {c: m.counts[c]}) for m in looked["predictions"] for c in m.clients if c != silent]
    part = refine_pairs.fn(**{**looked, "predictions": heard})
    away = [found.clients.index(silent) in pair for pair in ((0, 1), (0, 2), (1, 2))]
    expected = np.where(np.array(away)[:, None], found.pairs.verdicts.types, again.pairs.verdicts.types)
    np.testing.assert_array_equal(part.pairs.verdicts.types, expected)

"""What clients tell for a second look: the same when asked again, and nothing of a class with fewer than ten rows."""

from collections.abc import Mapping

import numpy as np
import pytest

from flows.diagnosis.query_clients import collect_answers
from models.diagnosis.client_summaries.model_predictions import SAME_RUN, Design
from silos.client_store import ClientStore
from silos.cohort import Stack
from silos.privacy.ledger import Ledger
from tasks.diagnosis.report_predictions import report_models, report_predictions, second_half
from tasks.diagnosis.report_summary import LocalSummary
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import PlainRunner
from tasks.messages.message_policy import numbers_of

BOUNDED = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4}]


def rows(seed, sizes):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    return rng.normal(size=(len(y), 2)) + y[:, None] / 2, y


@pytest.fixture
def looked(asked, tmp_path):
    """Asks silos for counts, for models, and for what all of these, or others (client to owner to weights), foresee.

    `keeps` names what they remember by; spread: of what models see.
    """

    def look(silos, keeps, others=None, spread=1.0):
        private = ClientStore(str(tmp_path / "private" / keeps))
        question = asked(silos, keeps=keeps).question
        design = Design(question, np.zeros(2), np.full(2, spread))
        (models, silent) = collect_answers(PlainRunner(), report_models, silos, private=private, design=design)
        weights = {c: own for m in models for c, own in zip(m.clients, m.weights.numpy(), strict=True)}
        about = dict.fromkeys(weights, weights) if others is None else others
        sent = {"private": private, "design": design, "models": about}
        foreseen, more = collect_answers(PlainRunner(), report_predictions, silos.select(list(about)), **sent)
        return models, foreseen, {**silent, **more}

    return look


def told(messages):
    values = [value for m in messages for name in numbers_of(type(m)) for value in [getattr(m, name)]]
    tensors = [tensor for value in values for tensor in (value.values() if isinstance(value, Mapping) else [value])]
    return [tensor.numpy().tobytes() for tensor in tensors]


def test_asked_again_models_and_what_they_foresee_are_the_same_bytes_and_nothing_more_is_written_down(
    silos_of, looked, tmp_path
):
    silos = silos_of({"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}, features=BOUNDED)
    first = looked(silos, "own")
    again = looked(silos, "own")
    assert told([*first[0], *first[1]]) == told([*again[0], *again[1]])
    for client in silos.clients:
        assert len(Ledger(str(tmp_path / "private" / "own"), client).entries()) == 3  # counts, models, foreseen


def test_a_client_sends_the_weights_of_two_models_and_a_number_for_each_model_feature_cell_and_class(silos_of, looked):
    silos = silos_of({"a": rows(1, (60, 50)), "b": rows(2, (40, 70)), "c": rows(3, (40, 40))}, features=BOUNDED)
    ((models,), (foreseen,), silent) = looked(silos, "own")
    assert silent == {}
    assert models.weights.shape == (3, 2, 2, 3)  # clients, halves, classes, two numbers and 1
    shapes = {client: tuple(counts.shape) for client, counts in foreseen.counts.items()}
    assert shapes == dict.fromkeys("abc", (3, 2, 33, 2))  # models, features, 32 bins and the missing, classes
    assert models.bytes_up + foreseen.bytes_up == 3 * 4 * (2 * 2 * 3 + 3 * 2 * 33 * 2)


def test_a_client_of_which_few_rows_changed_since_is_silent_and_the_others_are_heard(silos_of, looked):
    whole = {"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}
    _, (before,), _ = looked(silos_of(whole, features=BOUNDED), "own", only_of("a"))
    x, y = whole["b"]
    changed = silos_of({**whole, "b": (x[3:], y[3:])}, features=BOUNDED)
    (models,), (foreseen,), silent = looked(changed, "own", only_of("a"))
    assert models.clients == foreseen.clients == ("a",)
    assert told([foreseen]) == told([before])
    assert set(silent) == {"b"}


def test_where_few_rows_of_half_of_a_class_changed_that_is_said_and_no_noise_is_proposed(silos_of, looked):
    """Of fourteen rows that changed some seven are in either half: enough for counts, and too few for models."""
    whole = {"a": rows(1, (60, 50)), "b": rows(2, (60, 50))}
    looked(silos_of(whole, features=BOUNDED), "own", only_of("a"))
    x, y = whole["b"]
    _, _, silent = looked(silos_of({**whole, "b": (x[14:], y[14:])}, features=BOUNDED), "own", only_of("a"))
    assert set(silent) == {"b"}
    assert "differ by fewer than 10 different rows of half of a class" in silent["b"]
    assert (
        "Leave diagnose.second_look out, or wait until none or ten rows or more have changed in either half"
        in silent["b"]
    )
    assert "noise:" not in silent["b"]


@pytest.mark.parametrize(
    ("categories", "products"), [((1, 2), ((0, 1),)), (None, ((0, 1),) * 9)], ids=["of two categories", "too many"]
)
def test_a_client_itself_refuses_products_that_may_mark_single_rows(silos_of, asked, tmp_path, categories, products):
    kind = {"kind": "categorical", "categories": [1, 2]} if categories else {"low": -4, "high": 4}
    (x, y), (other, z) = rows(1, (60, 50)), rows(2, (40, 70))
    own = {"a": (1.0 + (x > 0), y), "b": (1.0 + (other > 0), z)}
    silos = silos_of(own, features=[{"name": name, **kind} for name in "ab"])
    design = Design(asked(silos, keeps="own").question, np.zeros(2), np.ones(2), products)
    private = ClientStore(str(tmp_path / "private" / "own"))
    models, silent = collect_answers(PlainRunner(), report_models, silos, private=private, design=design)
    assert models == []
    assert set(silent) == {"a", "b"}
    assert "expected at most 8, each with a numeric feature" in silent["a"]


def only_of(client, weights=None):
    """A silo is asked about its own model alone."""
    return {client: {client: np.zeros((2, 2, 3)) if weights is None else weights}}


def test_of_one_version_of_its_rows_a_client_answers_for_one_set_of_models_however_near_the_next_is(
    silos_of, looked, tmp_path
):
    silos = silos_of({"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}, features=BOUNDED)
    _, first, _ = looked(silos, "own", only_of("a"))
    entries = len(Ledger(str(tmp_path / "private" / "own"), "a").entries())
    for others in (only_of("a", np.full((2, 2, 3), 1e-9)), {"a": dict.fromkeys("ab", np.zeros((2, 2, 3)))}):
        _, heard, silent = looked(silos, "own", others)
        assert heard == []
        assert "client a: got a second query of the kind `what models foresee` on its present rows" in silent["a"]
        assert (
            "leave diagnose.second_look out, or wait until ten rows or more of the client have changed" in silent["a"]
        )
    assert len(Ledger(str(tmp_path / "private" / "own"), "a").entries()) == entries
    _, again, silent = looked(silos, "own", only_of("a"))
    assert told(again) == told(first)
    assert silent == {}


def test_two_models_that_expect_the_same_are_told_as_the_same_numbers(silos_of, looked):
    """One draw rounds what all models expect: the mean of several would tell what is rounded away."""
    silos = silos_of({"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}, features=BOUNDED)
    weights = np.broadcast_to(np.array([[0.0, 0, 0], [0.7, -0.4, 0.1]]), (2, 2, 3))
    _, (foreseen,), _ = looked(silos, "own", {"a": dict.fromkeys("ab", weights)})
    one, other = foreseen.counts["a"].numpy()
    assert (one == other).all()
    assert (one > 0).sum() > 4


def test_of_one_version_of_its_rows_a_client_tells_models_on_one_scale(silos_of, looked):
    """Who chooses the scale, and asks again and again, would have as many models of the same rows."""
    silos = silos_of({"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}, features=BOUNDED)
    first, _, _ = looked(silos, "own", only_of("a"))
    models, _, silent = looked(silos, "own", only_of("a"), spread=1.01)
    assert models == []
    assert "client b: got a second query of the kind `models of halves`" in silent["b"]
    assert told(looked(silos, "own", only_of("a"))[0]) == told(first)


def test_a_client_that_other_rows_came_to_answers_for_other_models(silos_of, looked):
    few, many = ({"a": rows(1, (60, 50)), "b": rows(2, sizes)} for sizes in ((60, 50), (110, 100)))
    x, y = many["b"]
    kept = np.concatenate([np.arange(60), np.arange(110, 160)])
    few["b"] = x[kept], y[kept]
    looked(silos_of(few, features=BOUNDED), "own")
    _, heard, silent = looked(silos_of(many, features=BOUNDED), "own")
    assert [m.clients for m in heard] == [("b",)]
    assert set(silent) == {"a"}  # its own rows are as they were, and the model of b is another


def test_a_client_is_asked_about_a_model_of_each_silo_of_the_data_at_most(silos_of, looked):
    """With a model for each step of a grid, the rows in a bin would show where each of them lies."""
    silos = silos_of({"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}, features=BOUNDED)
    grid = {f"model {at}": np.full((2, 2, 3), at / 100) for at in range(400)}
    _, heard, silent = looked(silos, "own", {"a": grid, "b": {"a": np.zeros((2, 2, 3))}})
    assert [m.clients for m in heard] == [("b",)]
    assert silent == {
        "a": "client a: got 400 models, 400 of them of no silo of its data (first model 0), expected at most one "
        "model of each silo. Leave the others out."
    }


def test_one_model_of_no_silo_of_the_data_is_refused_also_among_fewer_models_than_there_are_silos(silos_of, looked):
    """A silo of the data that is not asked itself is no stranger."""
    silos = silos_of({name: rows(at, (60, 50)) for at, name in enumerate("abc")}, features=BOUNDED)
    zeros = np.zeros((2, 2, 3))
    about = {"a": {"a": zeros, "stranger": zeros}, "b": {"b": zeros, "c": zeros}}
    _, heard, silent = looked(silos, "own", about)
    assert [m.clients for m in heard] == [("b",)]
    assert [*silent] == ["a"]
    assert "got 2 models, 1 of them of no silo of its data (first stranger)" in silent["a"]


def test_the_model_of_the_other_half_speaks_of_a_clients_own_row_and_the_mean_of_both_of_another_clients(
    silos_of, looked, asked, tmp_path
):
    """The first half's model is sure of the first class and the second half's of the other one, whatever the row."""
    silos = silos_of({"a": rows(1, (160, 150)), "b": rows(2, (40, 70))}, features=BOUNDED)
    opposed = np.zeros((2, 2, 3))
    opposed[0, 0, -1] = opposed[1, 1, -1] = 1e4
    _, (foreseen,), _ = looked(silos, "own", {"a": dict.fromkeys("ab", opposed)})
    by_own, by_other = foreseen.counts["a"].numpy()
    opened, question = load_rows(silos, Stack(("a",), 1), "train", "cpu"), asked(silos).question
    mine = LocalSummary(silos, "a", opened.x[0], opened.y[0])
    second = second_half(Ledger(str(tmp_path / "private" / "own"), "a"), mine, question)
    cells = question.layout.cells_of(mine.features(question))
    for feature in range(2):
        firsts = np.flatnonzero((by_own[feature] != SAME_RUN).all(-1))
        run = np.searchsorted(firsts, cells[:, feature], side="right") - 1
        halves = np.stack([np.bincount(run[half], minlength=len(firsts)) for half in (second, ~second)], -1)
        assert len(firsts) > 2
        np.testing.assert_array_equal(by_own[feature, firsts], halves)
        assert (np.abs(by_other[feature, firsts] - halves.mean(-1, keepdims=True)) < 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("few", [1, 9])
def test_rows_of_a_class_with_fewer_than_ten_have_no_part_in_what_is_told(few, silos_of, looked, tmp_path):
    """The same secrets, with other rows of the class: the same bytes; with other rows of a class that is told, others.

    By models that are sure of a class whatever the row: how others' expectations are rounded follows from all rows.
    """
    common, (x, y) = rows(1, (50, 50, 30)), rows(4, (60, 50, few))
    weights = np.zeros((2, 3, 3))
    weights[:, 0, -1] = 1e4
    sure = {"a": {"b": weights}, "b": {"a": weights}}
    heard = []
    for changed in (None, 2, 0):
        other = np.where((y == changed)[:, None], -x, x)
        silos = silos_of({"a": (other, y), "b": common}, features=BOUNDED)
        models, foreseen, _ = looked(silos, "own", sure)
        heard.append([told(models), told(foreseen)])
        forget(tmp_path / "private" / "own")
    usual, others, control = heard
    assert usual == others
    assert usual[0] != control[0]
    assert usual[1] != control[1]


def forget(private):
    """All that was told; the secrets stay, from which halves and rounding follow."""
    for book in [path for path in private.rglob("*") if path.is_file() and path.name not in ("secret", "lock")]:
        book.unlink()

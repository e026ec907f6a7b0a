"""What clients tell for a second look: the same when asked again, and nothing of a class with fewer than ten rows."""

import numpy as np
import pytest
import torch

from flows.diagnosis.asking import answered
from models.shift.told.foreseen import Design
from silos.ledgers.ledger import Ledger
from silos.private import PrivateStore
from tasks.diagnosis.tell_foreseen import tell_foreseen
from tasks.diagnosis.tell_models import tell_models
from tasks.running.runner import PlainRunner

BOUNDED = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4}]


def rows(seed, sizes):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    return rng.normal(size=(len(y), 2)) + y[:, None] / 2, y


@pytest.fixture
def looked(asked, tmp_path):
    """Asks silos for counts, for models, and for what these, or others, foresee; `keeps` names what they remember by."""

    def look(silos, keeps, others=None):
        private = PrivateStore(str(tmp_path / "private" / keeps))
        question = asked(silos, keeps=keeps).question
        design = Design(question, np.zeros(2), np.ones(2))
        (models, silent) = answered(PlainRunner(), tell_models, silos, private=private, design=design)
        weights = np.concatenate([message.weights.numpy() for message in models]) if others is None else others
        owners = tuple(client for message in models for client in message.clients)
        sent = {"private": private, "design": design, "owners": owners, "weights": weights}
        foreseen, more = answered(PlainRunner(), tell_foreseen, silos.select(owners), **sent)
        return models, foreseen, {**silent, **more}

    return look


def told(messages):
    return [value.numpy().tobytes() for m in messages for value in vars(m).values() if isinstance(value, torch.Tensor)]


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
    assert foreseen.counts.shape == (3, 3, 2, 33, 2)  # clients, models, features, 32 bins and the missing, classes
    assert models.bytes_up + foreseen.bytes_up == 3 * 4 * (2 * 2 * 3 + 3 * 2 * 33 * 2)


def test_a_client_of_which_few_rows_changed_since_is_silent_and_the_others_are_heard(silos_of, looked):
    whole = {"a": rows(1, (60, 50)), "b": rows(2, (40, 70))}
    looked(silos_of(whole, features=BOUNDED), "own")
    x, y = whole["b"]
    models, foreseen, silent = looked(silos_of({**whole, "b": (x[3:], y[3:])}, features=BOUNDED), "own")
    assert [message.clients for message in (*models, *foreseen)] == [("a",), ("a",)]
    assert set(silent) == {"b"}


@pytest.mark.parametrize("few", [1, 9])
def test_rows_of_a_class_with_fewer_than_ten_have_no_part_in_what_is_told(few, silos_of, looked, tmp_path):
    """The same secrets, with other rows of the class: the same bytes; with other rows of a class that is told, others.

    By models that are sure of a class whatever the row: how others' expectations are rounded follows from all rows.
    """
    common, (x, y) = rows(1, (50, 50, 30)), rows(4, (60, 50, few))
    sure = np.zeros((2, 2, 3, 3))
    sure[..., 0, -1] = 1e4
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

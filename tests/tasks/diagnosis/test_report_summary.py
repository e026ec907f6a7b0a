"""What leaves a client in a diagnosis: nothing of fewer than ten different rows, no value of a row, under noise noise."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.core.config.diagnose_params import DiagnoseParams
from flows.diagnosis.query_clients import bytes_reported, first_query, query_clients
from models.diagnosis.client_summaries import client_summary
from silos.client_store import ClientStore
from silos.privacy import differencing
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import make_store
from tasks.execution.task_runner import PlainRunner
from tasks.messages import message_policy
from tasks.messages.statistics_messages import ShiftNumbers

BOUNDED = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4}]
MISSING = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4, "missing": {"fill": 0}}]
UNBOUNDED_MISSING = [{"name": "a"}, {"name": "b", "missing": {"fill": 0}}]
few_examples = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def odd(seed, sizes, copies=0, missing=0.0):
    """A client with so many different rows of each class, and more copies of one row of each; irrational values."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(y), 2))
    x[:, 1][rng.random(len(y)) < missing] = np.nan
    first = [np.flatnonzero(y == c)[0] for c in range(len(sizes)) if sizes[c]]
    again = np.repeat(first, copies)
    order = rng.permutation(len(y) + len(again))
    return np.concatenate([x, x[again]])[order], np.concatenate([y, y[again]])[order]


def different(x, y, told):
    """Different rows of the classes that are told."""
    return len(np.unique(np.nan_to_num(x[np.isin(y, told)].astype(np.float32), nan=99), axis=0))


SIZES = st.lists(st.integers(0, 14), min_size=2, max_size=5).filter(lambda sizes: sum(sizes) > 0)


@few_examples
@given(SIZES, st.integers(0, 12), st.integers(0, 9))
def test_no_class_under_ten_different_rows_is_told_alone_or_with_others(silos_of, asked, sizes, copies, seed):
    x, y = odd(seed, sizes, copies)
    found = asked(silos_of({"a": (x, y)}, features=BOUNDED, classes=len(sizes)))
    (told,) = found.answers.messages
    enough = [size >= 10 for size in sizes]
    assert torch.isfinite(told.labels[0]).tolist() == enough
    rest = [c for c, alone in enumerate(enough) if not alone]
    pooled = different(x, y, rest) >= 10
    columns = [*enough, pooled]
    assert (told.counts[0].sum((0, 1)) > 0).tolist() == columns
    assert torch.isfinite(told.moments[0]).all(-1).all(0).tolist() == columns


@few_examples
@given(SIZES, st.integers(0, 12), st.integers(0, 9), st.sampled_from([0.0, 0.4, 0.9]))
def test_subtracting_the_two_answers_of_a_table_without_bounds_leaves_no_sum_of_fewer_than_ten_rows(
    silos_of, asked, sizes, copies, seed, missing
):
    """Sums over a feature's rows, by number of rows: of each class, of those together, of all, in both answers."""
    x, y = odd(seed, sizes, copies, missing)
    found = asked(silos_of({"a": (x, y)}, features=UNBOUNDED_MISSING, classes=len(sizes)))
    assert found.to_first is not None
    (first,), (second,) = found.to_first.messages, found.answers.messages
    np.testing.assert_array_equal(first.labels, second.labels)
    np.testing.assert_array_equal(first.moments, second.moments)  # the same sums: a difference is none


def targets(seed, count, missing):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2))
    x[:, 1][rng.random(count) < missing] = np.nan
    return x, rng.normal(size=count) ** 3


@pytest.mark.slow
@few_examples
@given(st.integers(10, 120), st.sampled_from([0.0, 0.3, 0.8]), st.integers(0, 20))
def test_of_a_regression_the_groups_of_an_answer_are_all_rows_or_ten_fewer_than_are_told_without_them(
    silos_of, asked, count, missing, seed
):
    """The first question has all rows together, so that rows of a group that was left out would be the rest."""
    silos = silos_of({"a": targets(seed, count, missing), "b": targets(seed + 50, 300, 0.1)}, "regression", MISSING)
    found = asked(silos)
    assert found.answers.refusals == {}, "and no client is refused for it"
    for first, second in zip(of_client(found.to_first.messages), of_client(found.answers.messages), strict=True):
        for feature in range(2):
            whole, parts = (np.nan_to_num(told[feature, :, 0]).sum() for told in (first, second))
            rows = np.nan_to_num(second[feature, :, 0])
            assert parts == 0 or whole - parts == 0 or abs(whole - parts) >= 10
            assert (rows[rows > 0] >= 10).all()


def of_client(messages):
    return [moments for message in messages for moments in message.moments.numpy()]


@few_examples
@given(SIZES, st.integers(0, 9), st.sampled_from(["guarded", "moments"]), st.booleans())
def test_no_value_of_a_row_is_in_the_bytes_of_a_message(silos_of, asked, sizes, seed, verdict, bounded):
    """A number of the client's row is not there as itself, whatever its class; one feature is each row's own number."""
    x, y = odd(seed, sizes)
    x[:, 1] = np.pi + np.sqrt(2 + np.arange(len(y)))
    silos = silos_of({"a": (x, y), "b": odd(seed + 100, (30, 30))}, features=BOUNDED if bounded else None)
    found = asked(silos, verdict=verdict)
    values = x.astype(np.float32).ravel()
    secrets = {number.tobytes() for kind in (np.float32, np.float64) for number in values.astype(kind)}
    for message in found.messages:
        for part in ("rows", "labels", "counts", "moments", "counted_in"):
            numbers = getattr(message, part).numpy()
            held = {number.tobytes() for number in numbers.ravel()}
            held |= {number.tobytes() for number in numbers.astype(np.float32).ravel()}
            assert not held & secrets, part


def test_a_value_that_all_ten_rows_of_a_class_share_is_told_and_one_of_nine_is_not(silos_of, asked):
    x, y = odd(3, (10, 9, 30))
    x[y == 0, 1], x[y == 1, 1] = np.float32(np.e), np.float32(np.pi)
    (told,) = asked(silos_of({"a": (x, y)}, features=BOUNDED)).answers.messages
    means = told.moments[0, 1, :, 1].tolist()
    assert float(np.float32(np.e)) in means
    assert float(np.float32(np.pi)) not in means


def test_numbers_that_are_zero_with_either_sign_are_one_row(silos_of, asked):
    """Nine different rows and one that is another's but for a sign of zero."""
    x = np.array([[0.0, at / 3] for at in range(9)] + [[-0.0, 0.0]])
    (told,) = asked(silos_of({"a": (x, np.zeros(10, int)), "b": odd(1, (30, 30))})).answers.messages
    here = told.clients.index("a")
    assert torch.isnan(told.labels[here]).all()
    assert told.counts[here].sum() == 0


def test_a_client_with_one_row_tells_that_it_has_one_and_no_more(silos_of, asked):
    for shape in ((2,), (6, 6, 1)):
        rng = np.random.default_rng(0)
        rows = {"a": (rng.random((1, *shape)), np.zeros(1, int)), "b": (rng.random((60, *shape)), np.arange(60) % 3)}
        (told,) = asked(silos_of(rows)).answers.messages
        here = told.clients.index("a")
        assert told.rows[here] == 1
        assert torch.isnan(told.labels[here]).all()
        assert torch.isnan(told.moments[here]).all()
        assert not told.counts[here].any()


NOISE = {"noise": {"epsilon": 4.0}}


def test_under_noise_counts_of_all_classes_are_all_that_is_sent_and_their_shape_knows_no_rows(silos_of, asked):
    sent = []
    for sizes in ((40, 40, 40), (120, 0, 0), (1, 1, 1), (0, 9, 3)):
        found = asked(silos_of({"a": odd(1, sizes)}, features=BOUNDED, classes=3), **NOISE)
        assert found.to_first is None
        (message,) = found.answers.messages
        tensors = {name: value for name, value in vars(message).items() if isinstance(value, torch.Tensor)}
        assert set(tensors) == {"counts"}
        sent.append((message.clients, message.counts.dtype, tuple(message.counts.shape)))
        assert (message.counts != 0).float().mean() > 0.5, "no cell is left as it is, also none without a class"
    assert set(sent) == {(("a",), torch.int64, (1, 2, 9, 3))}


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 0.26805112), (4.0, 0.92493090)])
def test_what_is_sent_less_the_truth_is_noise_of_the_size_that_was_asked(epsilon, mu, silos_of, asked):
    """The same secret: two data sets under one version's name would have the same noise; here each has its own."""
    x, y = odd(5, (300, 200))
    spread = []
    for seed in range(36):
        silos = silos_of({"a": (x, y)}, features=BOUNDED)
        found = asked(silos, noise={"epsilon": epsilon}, keeps=f"again{seed}/own")
        (message,) = found.answers.messages
        truth = found.question.layout.counts(x.astype(np.float32).astype(float), y)
        spread.append(message.counts[0].numpy() - truth)
    noise = np.stack(spread)
    size = np.sqrt(2 / mu**2 + 1 / 12)  # and that of rounding
    assert noise.std() == pytest.approx(size, rel=5 / np.sqrt(2 * noise.size))
    assert abs(noise.mean()) < 4 * size / np.sqrt(noise.size)


@pytest.mark.parametrize("params", [{}, NOISE, {"verdict": "moments"}], ids=["counts", "noise", "moments"])
def test_the_same_question_asked_again_has_the_same_answer_and_spends_nothing(params, silos_of, asked, tmp_path):
    silos = silos_of({name: odd(seed, (40, 30)) for seed, name in enumerate("abc")}, features=BOUNDED)
    first, second = (asked(silos, keeps="own", **params) for _ in range(2))
    assert told_bytes(first) == told_bytes(second)
    for client in silos.clients:
        assert len(Ledger(str(tmp_path / "private" / "own"), client).entries()) == 1


def told_bytes(found):
    return [
        (message.clients, name, value.numpy().tobytes())
        for message in found.messages
        for name, value in vars(message).items()
        if isinstance(value, torch.Tensor)
    ]


def test_a_client_that_may_not_answer_is_silent_in_a_message_of_its_own_and_the_others_are_heard(silos_of, asked):
    rows = {name: odd(seed, (40, 30)) for seed, name in enumerate("abc")}
    asked(silos_of(rows, features=BOUNDED), keeps="own")
    x, y = rows["b"]
    fewer = {**rows, "b": (x[1:], y[1:])}
    found = asked(silos_of(fewer, features=BOUNDED), keeps="own").answers
    assert [message.clients for message in found.messages] == [("a", "c")]
    assert set(found.refusals) == {"b"}
    assert "client b" in found.refusals["b"]
    assert bytes_reported([found])["up"] == sum(message.bytes_up for message in found.messages)


def test_of_a_class_that_is_not_told_a_row_more_is_answered_with_the_number_of_rows_and_all_else_as_it_was(
    silos_of, asked
):
    x, y = odd(1, (60, 60, 4))
    least = np.arange(len(y)) != np.flatnonzero(y == 2)[0]
    (before,), (after,) = (
        asked(silos_of({"a": rows, "b": odd(2, (60, 60, 30))}, features=BOUNDED), keeps="own").answers.messages
        for rows in ((x[least], y[least]), (x, y))
    )
    here = before.clients.index("a")
    assert (after.rows - before.rows)[here] == 1
    for part in ("labels", "counts", "moments"):
        np.testing.assert_array_equal(getattr(before, part)[here], getattr(after, part)[here])


def test_a_row_is_the_same_to_a_ledger_also_where_another_silos_new_label_moved_the_codes_of_classes(silos_of, asked):
    """Ash comes before oak and pine, whose codes are one more from then on; of b a row is gone meanwhile."""
    trees = np.array(["ash", "oak", "pine"])
    rows = {name: (x, trees[1 + y]) for name, (x, y) in (("a", odd(1, (40, 30))), ("b", odd(2, (40, 30))))}
    asked(silos_of(rows, features=BOUNDED), keeps="own")
    (x, y), (other, labels) = rows["a"], rows["b"]
    later = {"a": (x, np.where(np.arange(len(y)) < 36, "ash", y)), "b": (other[1:], labels[1:])}
    found = asked(silos_of(later, features=BOUNDED), keeps="own").answers
    assert set(found.refusals) == {"b"}
    assert "differ by fewer than 10 different rows" in found.refusals["b"]


def test_of_a_regression_a_row_with_another_target_is_another_row_to_the_ledger(silos_of, tmp_path):
    """Four targets differ, which a mean of all would show; the first question counts no groups of them yet."""
    (x, y), others = targets(0, 60, 0.0), targets(1, 60, 0.0)
    private, params = ClientStore(str(tmp_path / "private")), DiagnoseParams()
    make_store(tmp_path / "private")
    heard = []
    for mine in (y, np.where(np.arange(60) < 4, y + 1, y)):
        silos = silos_of({"a": (x, mine), "b": others}, "regression")
        heard.append(query_clients(PlainRunner(), silos, private, first_query(silos, params), params))
    before, after = heard
    assert before.refusals == {}
    assert [message.clients for message in after.messages] == [("b",)]
    assert "differ by fewer than 10 different rows" in after.refusals["a"]


def test_a_category_is_counted_as_itself_also_where_float32_rounds_it(silos_of, asked):
    features = [{"name": "a", "kind": "categorical", "categories": [0.1, 0.7, 3]}, BOUNDED[1]]
    x = np.column_stack([np.repeat([0.1, 0.7, 3.0, 0.3], 10), np.arange(40) / 20])
    found = asked(silos_of({"a": (x, np.zeros(40, int)), "b": (x, np.ones(40, int))}, features=features))
    assert found.to_first is None, "categories and bounds are agreed on"
    (told,) = found.answers.messages
    assert told.counts[0, 0, :5, 0].tolist() == [10, 10, 10, 10, 0]


def test_missing_values_are_told_of_by_class_where_ten_rows_have_one(silos_of, asked):
    x, y = odd(2, (30, 30), missing=0.0)
    x[np.flatnonzero(y == 0)[:21], 1] = np.nan  # nine are left
    (told,) = asked(silos_of({"a": (x, y)}, features=MISSING)).answers.messages
    assert isinstance(told, ShiftNumbers)
    assert torch.isnan(told.moments[0, 1, 0]).all()
    assert told.counts[0, 1, :, 0].sum() == 0
    assert Counter(told.moments[0, 0, :2, 0].tolist()) == Counter({30.0: 2})
    assert told.moments[0, 1, 1, 0] == 30


def test_who_tells_who_remembers_and_what_a_message_promises_mean_the_same_ten_rows():
    assert client_summary.LEAST_ROWS == differencing.LEAST_ROWS == message_policy.LEAST_ROWS


@pytest.mark.parametrize(("far", "shows"), [([1e9], False), ([-999.0] * 9, False), ([-999.0] * 12, True)])
def test_moments_tell_of_far_values_of_ten_rows_or_more_only(far, shows, silos_of, asked):
    """One value of 1e9 is the mean times the number of rows."""
    x, y = odd(2, (300, 300))
    usual = asked(silos_of({"a": (x, y)}, features=BOUNDED)).answers.messages[0]
    rows = np.flatnonzero(y == 0)[: len(far)]
    typed = x.copy()
    typed[rows, 0] = far + np.arange(len(far))
    report = asked(silos_of({"a": (typed, y)}, features=BOUNDED), least_cell=1).answers.messages[0]
    mean, before = report.moments[0, 0, 0, 1], usual.moments[0, 0, 0, 1]
    assert bool(abs(mean - before) > 5) == shows
    assert report.counts[0, 0, :, 0].sum() == 300
    end = -1 if far[0] > 0 else 0
    bins = report.counts[0, 0, :-1, 0]  # the last is of missing values
    assert bins[end] >= len(far), "they are counted where they lie"
    np.testing.assert_array_equal(report.moments[0, 0, 1], usual.moments[0, 0, 1])

"""Clients tell moments of their rows, and the server makes of them the mean and scale of all rows together."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.client_model import Model
from silos.client_store import ClientStore
from silos.cohort import Silos, Stack, open_stack
from silos.data_params import DataParams
from silos.privacy.owner_file import OWNER_FILE, make_store
from silos.standardizer import Standardization, Standardizer
from silos.storage.partition_store import open_client, open_missing, write
from tasks.client_stats import report_stats
from tasks.fit_scale import check_scale, combine_moments, report_moments
from tasks.messages.message_policy import LEAST_ROWS

SIZES = {"oslo": 40, "lyon": 25, "rome": 11, "nine": 9, "three": 3, "copies": 30}
SPEAK = ("oslo", "lyon", "rome")
LARGE = np.array([700.0, 1e5, 0.0, -3.0, 4.0])  # means, of which the last is of a constant


def rows_of(client, total):
    """Of `copies` nine rows again and again."""
    rng = np.random.default_rng(list(client.encode()))
    x = LARGE + rng.normal(size=(total, 5)) * [300.0, 1.0, 1e-3, 1.0, 0.0]
    y = 150 + 80 * rng.normal(size=total)
    return (np.resize(x[:9], x.shape), np.resize(y[:9], total)) if client == "copies" else (x, y)


@pytest.fixture
def ask(make_problem, make_round):
    """What clients tell, and what the server makes of it."""

    def run(setup=None, stack=2, workers=1, **wanted):
        setup = setup or make_problem(SIZES, silos={"rows_of": rows_of, "task": "regression"})
        round = make_round(setup, stack=stack, workers=workers)
        wanted = {"inputs": True, "targets": True, **wanted}
        told = round.map_clients(report_moments, Model(setup.network, {}, clients=setup.silos.clients), **wanted)
        return setup.silos, told, round.run_on_server(combine_moments, told), round.tally

    return run


def all_rows(silos: Silos, clients) -> tuple[np.ndarray, np.ndarray]:
    parts = [open_client(Path(silos.folder), silos.manifest.client(client), "train") for client in clients]
    return tuple(np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))


def test_mean_and_scale_are_numpys_of_all_rows_of_clients_that_may_tell(ask):
    silos, _, scale, _ = ask()
    x, y = all_rows(silos, SPEAK)
    whole = np.c_[x, y]
    np.testing.assert_allclose(scale.mean, whole.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scale.scale[:4] + scale.scale[5:], np.delete(whole.std(0), 4), rtol=1e-12)
    assert (scale.mean[4], scale.scale[4]) == (4.0, 1.0)  # a constant becomes 0


def test_they_are_the_same_bits_for_any_stack_and_workers_and_each_part_alone(ask):
    _, _, scale, _ = ask()
    for stack, workers in ((1, 1), (3, 2), (6, 1)):
        assert ask(stack=stack, workers=workers)[2] == scale
    assert ask(targets=False)[2] == Standardizer(scale.mean[:5], scale.scale[:5])
    assert ask(inputs=False)[2] == Standardizer(scale.mean[5:], scale.scale[5:])


def test_a_client_of_fewer_than_ten_different_rows_sends_nothing(ask):
    _, told, _, tally = ask()
    for message in told:
        for at, client in enumerate(message.clients):
            numbers = [getattr(message, name)[at] for name in ("counts", "sums", "squares")]
            assert all((n == 0).all() for n in numbers) == (client not in SPEAK)
    assert tally.bytes_up == len(SPEAK) * 3 * 6 * 8
    assert tally.bytes_down == 0  # the model is not sent for it


def test_values_that_are_missing_are_not_counted_and_a_column_of_few_is_not_told(tmp_path, make_problem, ask):
    x = np.random.default_rng(0).normal(500, 30, size=(60, 2))
    x[:14, 0] = np.nan  # of the first client's 20 rows, of which 6 are left
    x[25:30, 0] = np.nan
    np.savez(
        tmp_path / "gaps.npz", x=x, y=np.arange(60) % 2, client=np.repeat(["a", "b", "c"], 20), split=["train"] * 60
    )
    features = [{"name": name, "missing": {"fill": 1e6}} for name in ("age", "height")]
    section = {"name": "gaps", "seed": 0, "source": {"kind": "npz", "path": "gaps.npz"}, "features": features}
    section |= {"scheme": [{"kind": "column", "column": "client"}], "split": {"validation": 0, "test": 0}}
    write(tmp_path / "data" / "gaps", DataParams.model_validate(section), tmp_path)
    silos = Silos.open(tmp_path / "data" / "gaps", "gaps")
    _, told, scale, tally = ask(replace(make_problem({"a": 10}), silos=silos), targets=False)
    there = np.where(np.isnan(x), np.nan, x.astype(np.float32))
    there[:20, 0] = np.nan
    np.testing.assert_allclose(scale.mean, np.nanmean(there.astype(np.float64), 0), rtol=1e-12)
    np.testing.assert_allclose(scale.scale, np.nanstd(there.astype(np.float64), 0), rtol=1e-12)
    assert [message.counts.tolist() for message in told] == [[[0, 20], [15, 20]], [[20, 20]]]
    assert tally.bytes_up == 8 * (3 * 2 + 2 * 5)
    scaled = replace(silos, scaling=Standardization(scale))
    rows = open_stack(scaled, Stack(("a",), 1), "train").x[0]
    mask = open_missing(Path(silos.folder), silos.manifest.client("a"), "train")
    assert np.unique(rows[mask]) == pytest.approx([(1e6 - scale.mean[0]) / scale.scale[0]])  # filled in, then scaled


@pytest.fixture
def of_table(tmp_path, make_problem, ask):
    """What clients tell of inputs; of each its rows (x, y), where x may have NaN."""
    number = iter(range(100))

    def tell(rows, classes=2):
        name = f"table{next(number)}"
        x, y = (np.concatenate([own[at] for own in rows.values()]) for at in (0, 1))
        client = np.repeat([*rows], [len(own) for _, own in rows.values()])
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, client=client, split=["train"] * len(y))
        features = [{"name": column, "missing": {"fill": 0}} for column in ("age", "height")]
        section = {"name": name, "seed": 0, "source": {"kind": "npz", "path": f"{name}.npz"}, "features": features}
        section |= {"scheme": [{"kind": "column", "column": "client"}], "split": {"validation": 0, "test": 0}}
        write(tmp_path / "data" / name, DataParams.model_validate(section), tmp_path)
        silos = Silos.open(tmp_path / "data" / name, name)
        return ask(replace(make_problem({"a": 10}), silos=silos), targets=False)[1]

    return tell


def test_copies_of_rows_do_not_make_up_for_values_that_are_missing(of_table):
    """Of two classes five and four different rows have a value, each many times: nine rows together, and not fifty."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 2)), np.repeat([0, 1], 40)
    for first, different in ((0, 5), (40, 4)):
        x[first : first + 25] = x[first : first + different][np.arange(25) % different]
        x[first + 25 : first + 40, 1] = np.nan
    (message,) = of_table({"a": (x, y)})
    assert message.counts.tolist() == [[80, 0]]
    assert not message.sums[0, 1]
    x[25], y[25] = rng.normal(size=2), 0  # a tenth different row
    (message,) = of_table({"b": (x, y)})
    assert message.counts.tolist() == [[80, 51]]


@pytest.mark.parametrize(("values", "told"), [(9, [40, 30]), (10, [50, 40]), (0, [50, 30])])
def test_a_column_of_which_fewer_than_ten_values_came_is_not_told_anew_though_more_rows_came(values, told, of_table):
    """Thirty of the first forty rows have a value; ten rows come, of which so many have one."""
    x, y = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 2
    x[:10, 1] = np.nan
    x[40 + values :, 1] = np.nan
    (before,) = of_table({"oslo": (x[:40], y[:40])})
    (after,) = of_table({"oslo": (x, y)})
    assert before.counts.tolist() == [[40, 30]]
    assert after.counts.tolist() == [told]
    assert bool(after.earlier) == (values == 9)


@pytest.fixture
def version(make_problem):
    """A version of one client's rows: those at these places of a hundred."""

    def made(places):
        def rows(client, total):
            x, y = rows_of(client, 100)
            here = [*places, *range(90, 100)][:total]  # the last are not trained on
            return x[here], y[here]

        name = "of" + hashlib.sha256(bytes(places)).hexdigest()[:8]
        return make_problem({"oslo": len(places)}, silos={"rows_of": rows, "task": "regression", "name": name})

    return made


@pytest.mark.parametrize("more", range(1, 10))
def test_of_a_version_that_differs_by_fewer_than_ten_rows_a_client_tells_what_it_told_before(more, version, ask):
    (before,), (after,) = (ask(version(range(total)))[1] for total in (40, 40 + more))
    assert all(torch.equal(getattr(before, name), getattr(after, name)) for name in ("counts", "sums", "squares"))
    assert (before.earlier, [*after.earlier]) == ({}, ["oslo"])


def test_ten_rows_more_are_told_and_each_version_keeps_its_numbers(version, ask):
    versions = [version(range(total)) for total in (40, 45, 50, 49, 30)]
    told = [ask(setup)[1][0] for setup in versions]
    assert [int(message.counts[0, 0]) for message in told] == [40, 40, 50, 50, 30]
    again = [ask(setup)[1][0] for setup in reversed(versions)][::-1]
    assert all(torch.equal(one.sums, other.sums) for one, other in zip(told, again, strict=True))


def test_a_column_that_nobody_tells_of_has_no_mean(ask, make_problem):
    scale = ask(make_problem({"nine": LEAST_ROWS - 1, "three": 3}), targets=False)[2]
    assert np.isnan(scale.mean).all()


@pytest.mark.parametrize(
    ("mean", "deviation", "far"),
    [(0.0, 1.0, False), (9.0, 9.0, False), (12.0, 1.0, True), (-12.0, 1.0, True), (0.0, 14.0, True), (0.0, 1e-3, True)],
)
def test_far_from_unit_is_a_mean_or_deviation_above_ten_of_a_target_thirty_or_none_above_a_hundredth(
    mean, deviation, far, make_problem, make_round
):
    def drawn(client, total):
        x = deviation * np.random.default_rng(len(client)).normal(size=(total, 5)).clip(-1.5, 1.5)
        x[:, 0] += mean
        return x, 3 * x[:, 0]

    for task in ("classification", "regression"):
        rows = drawn if task == "regression" else lambda c, n: (drawn(c, n)[0], np.arange(n) % 3)
        setup = make_problem({"many": 400, "few": 9}, silos={"rows_of": rows, "task": task, "name": task})
        (told,) = make_round(setup).map_clients(check_scale, Model(setup.network, {}, clients=setup.silos.clients))
        assert dict(zip(told.clients, told.inputs.tolist(), strict=True)) == {"many": far, "few": False}
        wanted = far and task == "regression"
        assert dict(zip(told.clients, told.targets.tolist(), strict=True)) == {"many": wanted, "few": False}


def test_rows_that_only_fill_a_stack_up_are_no_targets_and_no_inputs(make_problem, make_round):
    """With a client of many rows beside it, zeros that fill up one of few rows would bring its mean near zero."""

    def far_off(client, total):
        return np.full((total, 5), 11.0) + np.arange(total)[:, None] / total, 40 + np.arange(total) / total

    setup = make_problem({"few": 20, "many": 400}, silos={"rows_of": far_off, "task": "regression"})
    (told,) = make_round(setup).map_clients(check_scale, Model(setup.network, {}, clients=setup.silos.clients))
    assert told.inputs.tolist() == told.targets.tolist() == [True, True]


def test_a_client_says_nothing_of_fewer_rows_than_its_owner_allows(make_problem, make_round, tmp_path):
    far = {"rows_of": lambda _, rows: (900 + np.arange(5 * rows).reshape(rows, 5), np.arange(rows) % 3)}
    setup = make_problem({"a": 20, "b": 20}, silos=far)
    round = make_round(setup, private=ClientStore(str(tmp_path / "private" / "own" / "sweep" / "seed0")))
    make_store(tmp_path / "private" / "own")
    for path in (Path(round.private.folder) / OWNER_FILE, tmp_path / "private" / "own" / OWNER_FILE):
        path.write_text("silos: {b: {least_rows: 21}}\n")
        (report,) = round.map_clients(check_scale, Model(setup.network, {}, clients=setup.silos.clients))
        assert report.inputs.tolist() == [True, False]
        stats = round.map_clients(report_stats, Model(setup.network, {}, clients=setup.silos.clients), names=("mean",))
        assert stats[0].silent == ("b",)
        path.unlink()


def test_a_client_says_whether_it_is_far_also_last_of_an_odd_number(make_problem, make_round):
    far = {"rows_of": lambda _, rows: (900 + np.arange(5 * rows).reshape(rows, 5), np.arange(rows) % 3)}
    setup = make_problem({"a": 20, "b": 20, "c": 20}, silos=far)
    told = make_round(setup, stack=2).map_clients(check_scale, Model(setup.network, {}, clients=setup.silos.clients))
    assert [message.inputs.tolist() for message in told] == [[True, True], [True]]
    assert [message.targets.tolist() for message in told] == [[False, False], [False]]


@pytest.mark.parametrize(
    ("scales", "offset", "far"),
    [
        ((1, 1, 1, 1, 1), 0.0, False),  # means of zero, to the bit
        ((1e-3,) * 5, 0.0, True),
        ((1e-3,) * 5, 0.02, False),
        ((1e-3, 1e-3, 1e-3, 1e-3, 1), 0.0, False),
        ((1e-3, 0, 0, 0, 0), 0.0, True),
    ],
)
def test_rows_are_too_small_where_no_mean_and_no_deviation_is_above_a_hundredth_and_something_varies(
    scales, offset, far, make_problem, make_round
):
    def balanced(client, total):
        return np.linspace(-1, 1, total)[:, None] * scales + offset, np.arange(total) % 3

    setup = make_problem({"a": 40}, silos={"rows_of": balanced, "validation": 0, "test": 0})
    (told,) = make_round(setup).map_clients(check_scale, Model(setup.network, {}, clients=setup.silos.clients))
    assert told.inputs.tolist() == [far]

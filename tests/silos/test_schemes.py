"""Every scheme puts each row with exactly one client, by the law that it names."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from silos.errors import UserError
from silos.params import Column, Dirichlet, Equal, Rotation
from silos.rotation import rotate
from silos.schemes import assign, dirichlet_shares, natural
from silos.sources import Rows
from silos.streams import stream


def numbered(n: int, classes: int = 3, **columns: np.ndarray) -> Rows:
    """Rows whose one feature is their number."""
    x = np.arange(n, dtype=np.float32)[:, None]
    return Rows(x=x, y=np.arange(n) % classes, classes=[str(c) for c in range(classes)], **columns)


def images(n: int, **columns: np.ndarray) -> Rows:
    x = np.random.default_rng(0).integers(0, 256, (n, 4, 4)).astype(np.uint8)
    return Rows(x=x, y=np.zeros(n, np.int64), classes=["0"], **columns)


STEPS = st.one_of(
    st.builds(Equal, kind=st.just("equal"), clients=st.integers(1, 12)),
    st.builds(
        Dirichlet,
        kind=st.just("dirichlet"),
        clients=st.integers(1, 12),
        alpha=st.floats(0.001, 1000),
        min_rows=st.integers(1, 3),
    ),
    st.just(Column(kind="column", column="client")),
)


@settings(deadline=None)
@given(step=STEPS, n=st.integers(1, 60), seed=st.integers(0, 2**64))
def test_every_row_lands_with_exactly_one_client(step, n, seed):
    rows = numbered(n, client=np.array([f"h{number % 5}" for number in range(n)]))
    try:
        clients = assign(rows, (step,), seed)
    except UserError:
        assume(False)
    landed = np.concatenate([client.x[:, 0] for client in clients])
    assert sorted(landed.tolist()) == list(range(n))
    for client in clients:
        np.testing.assert_array_equal(client.y, client.x[:, 0].astype(int) % 3)
        assert (np.diff(client.x[:, 0]) > 0).all()


@given(n=st.integers(1, 80), clients=st.integers(1, 20))
def test_equal_clients_differ_by_one_row_at_most(n, clients):
    assume(clients <= n)
    sizes = [len(c.y) for c in assign(numbered(n), (Equal(kind="equal", clients=clients),), 0)]
    assert max(sizes) - min(sizes) <= 1


def test_clients_are_numbered_in_order():
    names = [c.name for c in assign(numbered(300), (Equal(kind="equal", clients=101),), 0)]
    assert names[:2] == ["c000", "c001"]
    assert names[-1] == "c100"
    assert [c.name for c in assign(numbered(300), (Equal(kind="equal", clients=3),), 0)] == [
        "c00",
        "c01",
        "c02",
    ]


def test_natural_clients_keep_their_names_sorted_by_the_numbers_in_them():
    rows = numbered(4, client=np.array(["site10", "site9", "Zürich", "site9"]))
    assert [c.name for c in assign(rows, (Column(kind="column", column="client"),), 0)] == [
        "Zürich",
        "site9",
        "site10",
    ]


@given(st.lists(st.text(max_size=4)))
def test_any_names_can_be_sorted(names):
    sorted(names, key=natural)


def test_domains_can_be_clients():
    rows = numbered(4, domain=np.array(["b", "a", "b", "a"]))
    clients = assign(rows, (Column(kind="column", column="domain"),), 0)
    assert [(c.name, c.domain, len(c.y)) for c in clients] == [("a", "a", 2), ("b", "b", 2)]


def test_a_missing_column_is_named():
    with pytest.raises(UserError, match="column `client`"):
        assign(numbered(4), (Column(kind="column", column="client"),), 0)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_dirichlet_shares_follow_dirichlets_law(alpha):
    clients, draws = 4, 2000
    rng = stream(1, "law", str(alpha))
    shares = np.array([dirichlet_shares(rng, alpha, clients) for _ in range(draws)])
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    marginal = stats.beta(alpha, alpha * (clients - 1))
    assert stats.kstest(shares[:, 0], marginal.cdf).pvalue > 0.001


def test_dirichlet_shares_are_numbers_for_the_smallest_alpha():
    shares = dirichlet_shares(stream(0), 1e-6, 5)
    assert shares.max() == pytest.approx(1)


def test_dirichlet_deals_each_class_by_its_own_shares():
    rows = Rows(x=np.zeros((4000, 1)), y=np.arange(4000) % 2, classes=["0", "1"])
    alone = assign(rows, (Dirichlet(kind="dirichlet", clients=4, alpha=1.0),), 3)
    rng = stream(3, "scheme", 0, "dirichlet")
    for label in (0, 1):
        shares = dirichlet_shares(rng, 1.0, 4)
        rng.permutation(2000)
        np.testing.assert_allclose([np.mean(c.y == label) * len(c.y) / 2000 for c in alone], shares, atol=1e-3)


def test_a_partition_that_cannot_be_found_names_the_keys():
    step = Dirichlet(kind="dirichlet", clients=10, alpha=0.001, min_rows=5)
    with pytest.raises(UserError, match=r"data.scheme\[0\].*100 draws.*min_rows = 5 at alpha = 0.001"):
        assign(numbered(60), (step,), 0)
    with pytest.raises(UserError, match=r"7 clients with at least 1 row each.*6 rows.*client c06"):
        assign(numbered(6), (Equal(kind="equal", clients=7),), 0)


def test_rotation_deals_angles_to_contiguous_blocks_of_clients():
    rows = images(45)
    steps = (Equal(kind="equal", clients=9), Rotation(kind="rotation", angles=(0, -50, 120)))
    plain, turned = assign(rows, steps[:1], 5), assign(rows, steps, 5)
    assert [c.domain for c in turned] == ["rot0"] * 3 + ["rot-50"] * 3 + ["rot120"] * 3
    for before, after, angle in zip(plain, turned, np.repeat([0, -50, 120], 3), strict=True):
        np.testing.assert_array_equal(after.x, rotate(before.x, angle))
        np.testing.assert_array_equal(after.y, before.y)


def test_a_transform_leaves_the_assignment_alone():
    rows = images(40)
    step = Dirichlet(kind="dirichlet", clients=4, alpha=1.0)
    alone = assign(rows, (step,), 9)
    turned = assign(rows, (step, Rotation(kind="rotation", angles=(0, 0.0))), 9)
    for before, after in zip(alone, turned, strict=True):
        np.testing.assert_array_equal(before.x, after.x)


def test_rotation_joins_its_name_to_a_domain_of_the_source():
    rows = images(2, client=np.array(["a", "b"]), domain=np.array(["photo", "sketch"]))
    steps = (Column(kind="column", column="client"), Rotation(kind="rotation", angles=(22.5, -0.0)))
    assert [c.domain for c in assign(rows, steps, 0)] == ["photo-rot22.5", "sketch-rot0"]


def test_rotation_of_what_is_no_image_is_a_sentence():
    steps = (Equal(kind="equal", clients=1), Rotation(kind="rotation", angles=(1,)))
    with pytest.raises(UserError, match=r"turns images.*\(1,\)"):
        assign(numbered(4), steps, 0)


def test_more_angles_than_clients_is_a_sentence():
    steps = (Equal(kind="equal", clients=2), Rotation(kind="rotation", angles=(0, 1, 2)))
    with pytest.raises(UserError, match="3 angles for 2 clients"):
        assign(images(4), steps, 0)

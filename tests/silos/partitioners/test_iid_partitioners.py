"""Steps that make clients without looking at labels keep to the law that they name."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from silos.dataset import data_stream
from silos.errors import UserError
from silos.partitioners.iid_partitioners import dirichlet_shares, owners_by_share


@given(n=st.integers(1, 80), clients=st.integers(1, 20), test=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_equal_clients_differ_by_one_row_at_most_in_every_split(numbered, make, n, clients, test, seed):
    assume(clients <= n)
    split = np.array(["train"] * n + ["test"] * test)
    made = make(numbered(n + test, split=split), {"kind": "equal", "clients": clients}, seed=seed)
    for name in ("train", "test"):
        sizes = [int((client.split == name).sum()) for client in made.clients]
        assert max(sizes) - min(sizes) <= 1


def test_clients_are_numbered_in_order(numbered, make):
    names = [c.name for c in make(numbered(300), {"kind": "equal", "clients": 101}).clients]
    assert names[:2] == ["c000", "c001"]
    assert names[-1] == "c100"
    assert [c.name for c in make(numbered(9), {"kind": "equal", "clients": 3}).clients] == ["c00", "c01", "c02"]


def test_natural_clients_keep_their_names_sorted_by_the_numbers_in_them(numbered, make):
    rows = numbered(4, client=np.array(["site10", "site9", "Zürich", "site9"]))
    made = make(rows, {"kind": "column", "column": "client"})
    assert [(c.name, c.x[:, 0].tolist()) for c in made.clients] == [("Zürich", [2]), ("site9", [1, 3]), ("site10", [0])]


def test_domains_can_be_clients(numbered, make):
    rows = numbered(4, domain=np.array(["b", "a", "b", "a"]))
    clients = make(rows, {"kind": "column", "column": "domain"}).clients
    assert [(c.name, c.domain, len(c.y)) for c in clients] == [("a", "a", 2), ("b", "b", 2)]


@pytest.mark.parametrize("column", ["client", "domain"])
def test_a_missing_column_is_named(numbered, make, column):
    with pytest.raises(UserError, match=rf"data.scheme\[0\] \(`column`\): column: got `{column}`"):
        make(numbered(4), {"kind": "column", "column": column})


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_dirichlet_shares_follow_dirichlets_law(alpha):
    clients, draws = 4, 2000
    rng = data_stream(1, "law", str(alpha))
    shares = np.array([dirichlet_shares(rng, alpha, clients) for _ in range(draws)])
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    marginal = stats.beta(alpha, alpha * (clients - 1))
    assert stats.kstest(shares[:, 0], marginal.cdf).pvalue > 0.001


def test_dirichlet_shares_are_numbers_for_the_smallest_alpha():
    shares = dirichlet_shares(data_stream(0), 1e-6, 5)
    assert shares.max() == pytest.approx(1)


@given(count=st.integers(0, 200), weights=st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_rows_by_share_are_off_by_one_at_most(count, weights):
    assume(sum(weights) > 1e-3)
    shares = np.array(weights) / sum(weights)
    owner = owners_by_share(count, shares)
    assert len(owner) == count
    assert (np.abs(np.bincount(owner, minlength=len(shares)) - shares * count) <= 1 + 1e-9).all()


@given(
    clients=st.integers(1, 9),
    spare=st.integers(0, 60),
    test=st.integers(0, 50),
    beta=st.floats(0.05, 50),
    seed=st.integers(0, 999),
)
def test_quantity_gives_a_row_and_a_dirichlet_share_of_the_others(numbered, make, clients, spare, test, beta, seed):
    n = clients + spare
    rows = numbered(n + test, split=np.array(["train"] * n + ["test"] * test))
    made = make(rows, {"kind": "quantity", "clients": clients, "beta": beta}, seed=seed)
    shares = dirichlet_shares(data_stream(seed, "scheme", 0, "quantity"), beta, clients)
    for share, client in zip(shares, made.clients, strict=True):
        assert abs((client.split == "train").sum() - (1 + share * spare)) <= 1
        assert abs((client.split == "test").sum() - share * test) <= 1
        assert (client.split == "train").any()


def test_quantity_deals_at_random_whatever_the_order_of_the_source(numbered, make):
    made = make(numbered(3000), {"kind": "quantity", "clients": 3, "beta": 5}, seed=1)
    for client in made.clients:
        assert stats.kstest(client.x[:, 0], stats.uniform(0, 3000).cdf).pvalue > 0.001


@given(clients=st.integers(2, 9), seed=st.integers(0, 99))
def test_within_domains_every_client_has_one_domain_and_domains_have_as_many_clients(numbered, make, clients, seed):
    rows = numbered(60, domain=np.array(["photo"] * 45 + ["sketch"] * 15))
    made = make(rows, {"kind": "equal", "clients": clients, "within": "domain"}, seed=seed)
    domains = [client.domain for client in made.clients]
    assert domains == sorted(domains)
    assert abs(domains.count("photo") - domains.count("sketch")) <= 1
    for domain, rows_there in (("photo", 45), ("sketch", 15)):
        sizes = [len(client.y) for client in made.clients if client.domain == domain]
        assert sum(sizes) == rows_there
        assert max(sizes) - min(sizes) <= 1
    assert [client.name for client in made.clients] == [f"c{i:02d}" for i in range(clients)]


def test_dealing_within_domains_needs_domains_and_a_client_for_each(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`equal`\): within: got a source without domains"):
        make(numbered(9), {"kind": "equal", "clients": 3, "within": "domain"})
    rows = numbered(9, domain=np.array(list("abcabcabc")))
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`equal`\): clients: got 2 for 3 domains, expected at"):
        make(rows, {"kind": "equal", "clients": 2, "within": "domain"})
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`equal`, in the domain 'a'\): clients: got 4 with at"):
        make(rows, {"kind": "equal", "clients": 11, "within": "domain"})


def test_more_clients_than_rows_to_train_on_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`equal`\): clients: got 7 with at least 1 row each"):
        make(numbered(6), {"kind": "equal", "clients": 7})
    rows = numbered(9, split=np.array(["train"] * 4 + ["test"] * 5))
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`quantity`\): clients: got 5 with at least 1 row each"):
        make(rows, {"kind": "quantity", "clients": 5, "beta": 1})

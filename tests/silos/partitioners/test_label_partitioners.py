"""Steps that make clients by label: counts and shares are those of the law, in training and in test rows."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from silos.dataset import Rows, contiguous_blocks, data_stream
from silos.errors import UserError
from silos.partitioners.iid_partitioners import dirichlet_shares


def labels(client, split: str = "train", classes: int = 10) -> np.ndarray:
    """How many rows of each class a client has in a split."""
    return np.bincount(client.y[client.split == split], minlength=classes)


def drawn(n: int, test: int, classes: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    split = np.array(["train"] * n + ["test"] * test)
    x = np.arange(n + test, dtype=np.float32)[:, None]
    return Rows(x=x, y=rng.integers(0, classes, n + test), classes=[str(c) for c in range(classes)], split=split)


# --- dirichlet ---


def test_dirichlet_deals_each_class_by_its_own_shares_in_every_split(make):
    y = np.arange(6000) % 2
    rows = Rows(x=np.zeros((6000, 1)), y=y, classes=["0", "1"], split=np.where(np.arange(6000) < 4000, "train", "test"))
    made = make(rows, {"kind": "dirichlet", "clients": 4, "alpha": 1.0}, seed=3)
    rng = data_stream(3, "scheme", 0, "dirichlet")
    for label in (0, 1):
        shares = dirichlet_shares(rng, 1.0, 4)
        rng.permutation(2000)
        for split, n in (("train", 2000), ("test", 1000)):
            found = [labels(client, split, 2)[label] / n for client in made.clients]
            np.testing.assert_allclose(found, shares, atol=1.01 / n)


def test_a_partition_that_cannot_be_found_names_the_keys(numbered, make):
    step = {"kind": "dirichlet", "clients": 10, "alpha": 0.001, "min_rows": 5}
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`dirichlet`\): min_rows: got 5, expected a value that"):
        make(numbered(60), step)


def test_a_partition_with_exactly_the_rows_that_are_asked_for_is_found(numbered, make):
    made = make(numbered(6, 1), {"kind": "dirichlet", "clients": 3, "alpha": 100, "min_rows": 2})
    assert [len(client.y) for client in made.clients] == [2, 2, 2]


# --- shards ---


@settings(deadline=None)
@given(
    clients=st.integers(1, 8),
    k=st.integers(1, 4),
    n=st.integers(1, 100),
    test=st.integers(0, 40),
    seed=st.integers(0, 999),
)
def test_clients_hold_k_runs_of_the_rows_sorted_by_label(make, clients, k, n, test, seed):
    assume(clients * k <= n)
    rows = drawn(n, test, 4, seed)
    made = make(rows, {"kind": "shards", "clients": clients, "shards_per_client": k}, seed=seed)
    # lay the training rows out by label: each client's are at most k runs in the order of shards
    sizes = [int((client.split == "train").sum()) for client in made.clients]
    whole = n // (clients * k)
    assert all(k * whole <= size <= k * (whole + 1) for size in sizes)
    # a shard of s rows has at most as many labels as class borders that lie in it, plus one
    total_labels = sum(int((labels(client) > 0).sum()) for client in made.clients)
    assert total_labels <= clients * k + 3  # 4 classes have 3 borders, each cuts one shard
    for client in made.clients:
        for label in range(4):
            of_class = labels(client, "train")[label]
            share = of_class / max(1, (rows.y[:n] == label).sum())
            expected = share * (rows.y[n:] == label).sum()
            if (rows.y[:n] == label).any():
                assert abs(labels(client, "test")[label] - expected) <= 1


def test_two_shards_a_client_are_mcmahans(make):
    rows = Rows(x=np.zeros((60_000, 1)), y=np.arange(60_000) % 10, classes=list("0123456789"))
    made = make(rows, {"kind": "shards", "clients": 100, "shards_per_client": 2})
    assert [len(client.y) for client in made.clients] == [600] * 100
    assert all(set(labels(client)) <= {0, 300, 600} for client in made.clients)


def test_which_shards_a_client_gets_is_random(make):
    rows = Rows(x=np.zeros((4000, 1)), y=np.arange(4000) % 10, classes=list("0123456789"))
    found = Counter()
    for seed in range(300):
        (first, *_) = make(rows, {"kind": "shards", "clients": 10, "shards_per_client": 2}, seed=seed).clients
        found.update(np.flatnonzero(labels(first)).tolist())
    # each label in a share of 1 - (18 choose 2)/(20 choose 2) = 37/190 of the draws: 58 of 300, sd 6.8
    assert all(30 < found[label] < 90 for label in range(10))


def test_more_shards_than_rows_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`shards`\): shards_per_client: got 4 clients \* 3"):
        make(numbered(11), {"kind": "shards", "clients": 4, "shards_per_client": 3})


def test_a_shard_may_be_one_row(numbered, make):
    made = make(numbered(12), {"kind": "shards", "clients": 4, "shards_per_client": 3})
    assert [len(client.y) for client in made.clients] == [3, 3, 3, 3]


# --- balanced ---

GROUPS = {
    "paper": [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)],
    "code": [(0, 1, 2), (3, 4, 5), (6, 7, 8, 9)],
    "mine": [(0, 9), (1, 2, 3, 4, 5, 6, 7, 8)],
}


@settings(deadline=None, max_examples=50)
@given(
    groups=st.sampled_from(list(GROUPS)),
    clients=st.integers(3, 10),
    percent=st.integers(0, 100),
    n=st.integers(300, 900),
    seed=st.integers(0, 999),
)
def test_percent_of_the_rows_go_to_all_and_the_rest_to_their_group(make, groups, clients, percent, n, seed):
    rows = drawn(n, n // 2, 10, seed)
    asked = groups if groups != "mine" else [["0", "9"], list("12345678")]
    made = make(rows, {"kind": "balanced", "clients": clients, "percent": percent, "groups": asked}, seed=seed)
    sizes = [len(block) for block in np.array_split(np.arange(clients), len(GROUPS[groups]))]
    owned = [GROUPS[groups][index] for index, size in enumerate(sizes) for _ in range(size)]
    for split, total in (("train", n), ("test", n // 2)):
        to_all = total * percent // 100
        foreign = 0
        for client, own in zip(made.clients, owned, strict=True):
            counts = labels(client, split)
            not_own = counts.sum() - counts[list(own)].sum()
            assert not_own <= -(-to_all // clients)  # all of them were dealt to everyone
            foreign += not_own
        if percent == 0:
            assert foreign == 0
        if percent == 100:
            found = [labels(client, split).sum() for client in made.clients]
            assert max(found) - min(found) <= 1
    if groups == "mine":
        return
    # on average, two thirds or so of what is dealt to everyone is not of the own group
    assert foreign <= n // 2 * percent // 100


@pytest.mark.parametrize(
    ("percent", "laws"), [(0, {"set0", "set1", "set2"}), (99, {"set0", "set1", "set2"}), (100, {""})]
)
def test_groups_are_laws_unless_all_rows_are_dealt_to_all(percent, laws, make):
    made = make(drawn(300, 0, 10, 0), {"kind": "balanced", "clients": 5, "percent": percent, "groups": "paper"})
    domains = [client.domain for client in made.clients]
    assert {*domains} == laws
    assert domains == sorted(domains)


def test_a_balanced_half_is_half_of_each_law(make):
    rows = Rows(x=np.zeros((60_000, 1)), y=np.arange(60_000) % 10, classes=list("0123456789"))
    made = make(rows, {"kind": "balanced", "clients": 9, "percent": 50, "groups": "code"})
    for client, own in zip(made.clients, np.repeat([0, 1, 2], 3), strict=True):
        shares = labels(client) / 60_000
        for label in range(10):
            to_all, to_group = 0.05 / 9, 0.05 / 3 if label in GROUPS["code"][own] else 0
            assert shares[label] == pytest.approx(to_all + to_group, rel=0.25)  # 333 rows, sd 18


@pytest.mark.parametrize(
    ("groups", "clients", "said"),
    [
        ([["0", "1"], ["3"]], 4, r"data\.scheme\[0\] \(`balanced`\): got the class '3', expected one of 0, 1, 2"),
        ([["0"], ["1"]], 4, r"data\.scheme\[0\] \(`balanced`\): groups: got no group with the class '2', expected"),
        ([["0", "1"], ["1", "2"]], 4, r"data\.scheme\[0\] \(`balanced`\): groups: got the class '1' twice, expected"),
        ([["0"], ["1"], ["2"]], 2, r"data\.scheme\[0\] \(`balanced`\): clients: got 2 for 3 groups, expected at"),
        ("paper", 9, r"data\.scheme\[0\] \(`balanced`\): groups: got `paper` with a source of 3 classes, expected"),
    ],
)
def test_groups_that_do_not_fit_are_a_sentence(numbered, make, groups, clients, said):
    with pytest.raises(UserError, match=said):
        make(numbered(30), {"kind": "balanced", "clients": clients, "percent": 50, "groups": groups})


MNIST = "5041921314353617286940911243273869056076"  # the labels of the first 40 training rows
DIGITS = list("0123456789")


def of_digits(digits: str, test: str = "") -> Rows:
    """Rows of these labels, whose one feature is their number."""
    y = np.array([int(digit) for digit in digits + test])
    split = np.array(["train"] * len(digits) + ["test"] * len(test)) if test else None
    return Rows(x=np.arange(len(y), dtype=np.float32)[:, None], y=y, classes=DIGITS, split=split)


def numbers(client, split: str = "train") -> list[int]:
    return client.x[client.split == split, 0].astype(int).tolist()


def test_the_authors_deal_keeps_the_order_and_leaves_out_what_does_not_go_round(make):
    """b = 40 // 4 = 10, of which 9 go round; 30 go by label, and the last row is left out."""
    step = {"kind": "balanced", "clients": 3, "percent": 25, "groups": "code", "authors_deal": True}
    for seed in (0, 1):
        made = make(of_digits(MNIST), step, seed=seed)
        assert [numbers(client) for client in made.clients] == [
            [0, 3, 6, 14, 16, 21, 23, 24, 25, 28, 34, 37],  # 0-2
            [1, 4, 7, 9, 10, 11, 12, 20, 26, 27, 30, 35],  # 3-5
            [2, 5, 8, 13, 15, 17, 18, 19, 22, 29, 31, 32, 33, 36, 38],  # 6-9
        ]
        assert made.left_out == 1


def test_the_authors_deal_takes_the_clients_of_a_group_in_turn(make):
    """b = 2, of which none goes round four clients: 38 rows go by label, and the last two are left out."""
    groups = [DIGITS[:5], DIGITS[5:]]
    made = make(
        of_digits(MNIST), {"kind": "balanced", "clients": 4, "percent": 5, "authors_deal": True, "groups": groups}
    )
    first, second = ([at for at, digit in enumerate(MNIST[:38]) if digit in group] for group in groups)
    assert [numbers(client) for client in made.clients] == [first[::2], first[1::2], second[::2], second[1::2]]
    assert made.left_out == 2


def test_without_the_authors_deal_no_row_is_left_out(make):
    made = make(of_digits(MNIST), {"kind": "balanced", "clients": 3, "percent": 25, "groups": "code"})
    assert sum(len(client.y) for client in made.clients) == 40
    assert made.left_out == 0


@pytest.mark.parametrize(
    ("clients", "digits"),
    [
        (9, ["0", "1", "2", "3", "4", "5", "6", "7", "89"]),
        (3, ["012", "345", "6789"]),
        (4, ["01", "23", "45", "6789"]),
        (10, DIGITS),
    ],
)
@pytest.mark.parametrize("authors_deal", [True, False])
def test_the_authors_own_test_rows_go_by_digits_of_each_client(make, clients, digits, authors_deal):
    """Training rows still go to groups."""
    step = {"kind": "balanced", "clients": clients, "percent": 0, "groups": "paper"}
    step |= {"authors_deal": authors_deal, "authors_own_test": True}
    made = make(of_digits(MNIST * 3, MNIST * 3), step)
    assert ["".join(map(str, np.flatnonzero(labels(client, "test")))) for client in made.clients] == digits
    for client, index in zip(made.clients, contiguous_blocks(clients, 3), strict=True):
        assert {*np.flatnonzero(labels(client))} <= {*GROUPS["paper"][index]}


def test_the_authors_own_test_rows_are_balanced_as_training_rows_are(make):
    """b = 20 test rows go round first, so that of the first 18 each client has two, and 2 are left out."""
    step = {"kind": "balanced", "clients": 9, "percent": 50, "authors_deal": True, "authors_own_test": True}
    made = make(of_digits(MNIST, MNIST), step)
    assert [numbers(client, "test")[:2] for client in made.clients] == [[40 + at, 49 + at] for at in range(9)]
    by_label = [numbers(client, "test")[2:] for client in made.clients]
    for client, own in enumerate(by_label):
        assert {MNIST[at - 40] for at in own} <= set(DIGITS[client : client + 1 + client // 8])
    assert sorted(at for own in by_label for at in own) == list(range(58, 78))
    assert made.left_out == 4


@pytest.mark.parametrize(
    ("keys", "test", "said"),
    [
        ({"authors_own_test": True}, "", "got no test rows to deal, .*test_rows own"),
        ({"authors_own_test": True, "clients": 11}, MNIST, "got 11 clients, expected at most 10"),
    ],
)
def test_what_the_authors_code_cannot_deal_is_a_sentence(make, keys, test, said):
    with pytest.raises(UserError, match=rf"data.scheme\[0\] \(`balanced`\): authors_own_test: {said}"):
        make(of_digits(MNIST, test), {"kind": "balanced", "clients": 3, "percent": 0, **keys})


@pytest.mark.parametrize("key", ["authors_deal", "authors_own_test"])
def test_the_authors_code_is_of_ten_classes(numbered, make, key):
    step = {"kind": "balanced", "clients": 2, "percent": 0, "groups": [["0"], ["1", "2"]], key: True}
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`balanced`\): authors_deal: got a source of 3 classes"):
        make(numbered(30), step)


@pytest.mark.parametrize(("clients", "said"), [(9, None), (10, "4, 3 and 3"), (11, "4, 4 and 3")])
def test_groups_that_have_not_equally_many_clients_are_said(make, clients, said):
    notes = make(of_digits(MNIST * 3), {"kind": "balanced", "clients": clients, "percent": 0}).notes
    sentence = f"data.scheme[0] (`balanced`): its 3 groups have {said} clients."
    assert notes == ((sentence,) if said else ())


def test_uneven_groups_are_said_of_each_domain(make):
    rows = replace(of_digits(MNIST * 6), domain=np.repeat(["a", "b"], 120))
    notes = make(rows, {"kind": "balanced", "clients": 7, "percent": 0, "within": "domain"}).notes
    assert notes == ("data.scheme[0] (`balanced`, in the domain 'a'): its 3 groups have 2, 1 and 1 clients.",)


# --- classes per cluster ---


@settings(deadline=None)
@given(
    clusters=st.lists(st.lists(st.sampled_from("01234"), min_size=1, max_size=4, unique=True), min_size=1, max_size=4),
    clients=st.integers(4, 9),
    seed=st.integers(0, 999),
)
def test_a_client_sees_its_clusters_classes_only_and_clusters_share_a_class(make, clusters, clients, seed):
    rows = drawn(400, 100, 5, 7)
    made = make(rows, {"kind": "classes_per_cluster", "clients": clients, "clusters": clusters}, seed=seed)
    block = [i * len(clusters) // clients for i in range(clients)]
    assert [client.domain for client in made.clients] == [f"set{index}" for index in block]
    named = {label for names in clusters for label in names}
    assert made.left_out == sum(str(label) not in named for label in rows.y)
    for split in ("train", "test"):
        totals = [np.zeros(5, int) for _ in clusters]
        for index, client in zip(block, made.clients, strict=True):
            counts = labels(client, split, 5)
            assert set(np.flatnonzero(counts).tolist()) <= {int(label) for label in clusters[index]}
            totals[index] += counts
        for label in "01234":
            found = [total[int(label)] for total, names in zip(totals, clusters, strict=True) if label in names]
            assert not found or max(found) - min(found) <= 1
        for index in range(len(clusters)):
            sizes = [labels(c, split, 5).sum() for i, c in zip(block, made.clients, strict=True) if i == index]
            assert max(sizes) - min(sizes) <= 1


def test_clients_of_a_common_and_of_a_rare_class_are_of_like_size_with_most_rows(make):
    y = np.array([0] * 90 + [1] * 12)
    rows = Rows(x=np.arange(len(y), dtype=float)[:, None], y=y, classes=["0", "1"])
    step = {"kind": "classes_per_cluster", "clients": 4, "clusters": [["0"], ["1"]], "most_rows": 7}
    made = make(rows, step)
    assert [len(client.y) for client in made.clients] == [7, 7, 6, 6]
    assert made.left_out == 90 - 14
    assert len({float(x) for client in made.clients for x in client.x[:, 0]}) == 26


def test_subclasses_are_classes_per_cluster_under_coarse_names(make):
    """Experiment E2a: the same coarse classes everywhere, each from other fine ones."""
    rows = drawn(400, 100, 4, 7)
    subclasses = [
        {"kind": "classes_per_cluster", "clients": 4, "clusters": [["0", "2"], ["1", "3"]]},
        {"kind": "merge_labels", "into": {"animal": ["0", "1"], "vehicle": ["2", "3"]}},
    ]
    made = make(rows, *subclasses)
    assert made.classes == ["animal", "vehicle"]
    for client, fine in zip(made.clients, ([0, 2], [0, 2], [1, 3], [1, 3]), strict=True):
        before = rows.y[client.x[:, 0].astype(int)]
        assert set(before.tolist()) == set(fine)
        np.testing.assert_array_equal(client.y, before // 2)


def test_clusters_that_cannot_be_are_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`classes_per_cluster`\): got the class 'cat'"):
        make(numbered(9), {"kind": "classes_per_cluster", "clients": 2, "clusters": [["0"], ["cat"]]})
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`classes_per_cluster`\): clients: got 2 for 3"):
        make(numbered(9), {"kind": "classes_per_cluster", "clients": 2, "clusters": [["0"], ["1"], ["2"]]})
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`classes_per_cluster`\): got no rows for client c03"):
        make(numbered(9), {"kind": "classes_per_cluster", "clients": 4, "clusters": [["0"]]})


@pytest.mark.parametrize("kind", ["dirichlet", "shards", "balanced", "classes_per_cluster"])
def test_targets_that_are_numbers_cannot_be_dealt_by_class(make, kind):
    keys = {
        "dirichlet": {"alpha": 1},
        "shards": {"shards_per_client": 1},
        "balanced": {"percent": 1},
        "classes_per_cluster": {"clusters": [["0"]]},
    }
    rows = Rows(x=np.zeros((9, 1)), y=np.zeros(9, np.float32), classes=[], task="regression")
    with pytest.raises(UserError, match="got a source with numeric targets, expected classes, by which this step"):
        make(rows, {"kind": kind, "clients": 2, **keys[kind]})


def test_more_clients_than_rows_in_clusters_of_classes_is_a_sentence(numbered, make):
    step = {"kind": "classes_per_cluster", "clients": 10**7, "clusters": [["0"], ["1"]]}
    with pytest.raises(UserError, match=r"data\.scheme\[0\] \(`classes_per_cluster`\): clients: got 10000000 with"):
        make(numbered(12, 2), step)

"""The sign of a loading: one for v and -v by every rule, and a form that has none."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.statistics.feature_vector import compute, make
from models.statistics.spectrum import RULES, fix_sign, orient, unsigned_cosine, unsigned_length, unsigned_vector
from models.statistics.statistic_base import STEADY, centred

SIGNED = [rule for rule in RULES if rule != "free"]
signed_rules = pytest.mark.parametrize("rule", SIGNED)
every_rule = pytest.mark.parametrize("rule", RULES)
# few values, so that ties and sums of zero are common
_vectors = arrays(np.float64, st.integers(1, 7), elements=st.sampled_from([-2.0, -1.0, -1e-9, 0.0, 0.5, 1.0, 2.0]))


def law(rows: int, seed: int, skew: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of eight inputs, spread along a direction at right angles to all ones, and of one class."""
    rng = np.random.default_rng(seed)
    along = rng.normal(size=rows) + skew * rng.exponential(3.0, rows)
    direction = np.tile([0.5, -0.5], 4) + np.array([0.2, 0.2, 0.1, 0.1, -0.1, -0.1, -0.2, -0.2])
    return torch.from_numpy(3 * along[:, None] * direction + rng.normal(size=(rows, 8))), torch.zeros(rows).long()


def loadings(x: torch.Tensor, y: torch.Tensor, **options: object):
    return compute([make({"kind": "loadings", **options})], x, y, 1)


@signed_rules
@given(v=_vectors.filter(lambda v: np.abs(v).max() > 0.1), seed=st.integers(0, 9))
def test_a_vector_and_its_negative_get_the_same_sign(rule, v, seed):
    unit = torch.from_numpy(v / np.linalg.norm(v))
    z = torch.randn(5, len(v), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 3 * unit
    inputs = max(1, len(v) - 2)
    once = orient(unit, rule, z, inputs)
    assert torch.equal(once, orient(-unit, rule, z, inputs))
    assert torch.equal(once, unit) or torch.equal(once, -unit)
    assert torch.equal(once, orient(once, rule, z, inputs))


@pytest.mark.parametrize(
    ("v", "deciding", "sign"),
    [
        ([-0.6, 0.8], 0, 1),  # the largest
        ([0.6, -0.8], 0, -1),
        ([0.6, -0.8], 0.5, 1),  # the number is before it
        ([0.6, -0.8], 1e-4, -1),  # unless it is nearly 0
        ([-0.7, 0.7, 0.1], 0, 1),  # of two largest, the sum
        ([0.7, -0.7 - 1e-9, -0.1], 0, -1),
        ([-0.7, 0.7], 0, -1),  # and of a sum of zero, the first
        ([-0.7, -0.7, 0.1], 0, -1),
    ],
)
def test_the_order_in_which_a_sign_is_settled(v, deciding, sign):
    v = torch.tensor(v, dtype=torch.float64)
    assert torch.equal(fix_sign(v, torch.tensor(float(deciding), dtype=torch.float64)), v * sign)


def test_ones_looks_at_inputs_only_and_falls_back_where_they_say_nothing():
    v, z = torch.tensor([0.6, -0.3, -0.7], dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(orient(v, "ones", z, 2), v)  # of all three the sum is below 0
    balanced = torch.tensor([0.5, -0.5, -0.7], dtype=torch.float64)
    assert torch.equal(orient(balanced, "ones", z, 2), -balanced)


@pytest.mark.parametrize("rows", [6, 40])
def test_data_is_the_rule_of_bro_acar_and_kolda(rows):
    """Written down once more, from the paper's algorithm of the singular value decomposition, pair by pair."""
    x = torch.randn(rows, 9, generator=torch.Generator().manual_seed(rows), dtype=torch.float64).exp()
    z = centred(x)
    u, s, vt = np.linalg.svd(z.numpy(), full_matrices=False)
    for k in range(3):
        rest = z.numpy() - sum(s[m] * np.outer(u[:, m], vt[m]) for m in range(len(s)) if m != k)
        left = sum(np.sign(u[:, k] @ column) * (u[:, k] @ column) ** 2 for column in rest.T)
        right = sum(np.sign(vt[k] @ row) * (vt[k] @ row) ** 2 for row in rest)
        if left * right < 0:
            left, right = (-left, right) if abs(left) < abs(right) else (left, -right)
        theirs = vt[k] * np.sign(right)
        np.testing.assert_allclose(orient(torch.from_numpy(vt[k]), "data", z, 9).numpy(), theirs)


@pytest.mark.parametrize("components", [1, 3])
def test_the_free_form_is_the_same_whatever_the_signs_are(components):
    v = torch.linalg.qr(torch.randn(9, components, generator=torch.Generator().manual_seed(0)).double()).Q.T
    values = torch.arange(components, 0, -1).double()
    flips = torch.tensor([-1.0, 1.0, -1.0]).double()[:components, None]
    torch.testing.assert_close(
        unsigned_vector(v * flips, values, 20), unsigned_vector(v, values, 20), rtol=0, atol=1e-15
    )
    assert float(unsigned_vector(v, values, 20).norm()) == pytest.approx(1)


def test_the_free_form_is_the_same_in_every_basis_where_eigenvalues_are_equal():
    v = torch.eye(6, dtype=torch.float64)[:2]
    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    values = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(
        unsigned_vector(turn @ v, values, 50), unsigned_vector(v, values, 50), rtol=0, atol=1e-12
    )


def test_inner_products_of_the_free_form_are_squared_cosines():
    one = torch.tensor([[0.6, 0.8] + [0.0] * 18], dtype=torch.float64)
    other = torch.tensor([[0.8, 0.6] + [0.0] * 18], dtype=torch.float64)
    value = torch.ones(1, dtype=torch.float64)
    inner = unsigned_vector(one, value, 5000) @ unsigned_vector(other, value, 5000)
    assert float(inner) == pytest.approx(float(one[0] @ other[0]) ** 2, abs=0.03)
    assert unsigned_cosine((one, value), (other, value)) == pytest.approx(float(one[0] @ other[0]))


def test_the_map_of_the_free_form_is_a_contract_between_clients_and_with_served_models():
    """These numbers must never change: clients that sketch otherwise describe the same rows otherwise."""
    v = torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.float64)
    found = unsigned_vector(v, torch.ones(1, dtype=torch.float64), 4)
    np.testing.assert_allclose(found, [-0.3813142974919905, 0.653681652843412, 0, -0.653681652843412], atol=1e-12)


def test_of_few_columns_every_entry_is_told_and_inner_products_are_exact():
    one, other = (torch.tensor([v], dtype=torch.float64) for v in ([0.6, 0.0, 0.8], [0.0, 1.0, 0.0]))
    value = torch.ones(1, dtype=torch.float64)
    root = 2**0.5
    found = unsigned_vector(one, value, 6)
    np.testing.assert_allclose(found, [0.36, 0, 0.48 * root, 0, 0, 0.64], atol=1e-15)
    assert float(found @ unsigned_vector(other, value, 6)) == 0
    assert [unsigned_length(columns, 1) for columns in (2, 13, 14, 100, 794)] == [3, 91, 100, 100, 794]
    assert [unsigned_length(columns, 4) for columns in (2, 13, 14, 100, 794)] == [3, 91, 100, 400, 3176]


@every_rule
def test_rows_in_another_order_change_no_bit(rule):
    x, y = law(40, 0)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    one, other = loadings(x, y, sign=rule, components=2), loadings(x[order], y[order], sign=rule, components=2)
    assert torch.equal(one.vector, other.vector)
    assert one.agreement == other.agreement


@every_rule
@pytest.mark.parametrize("components", [1, 3])
def test_what_any_rule_tells_is_as_long_as_asked_or_has_entries_of_size_1(rule, components):
    asked, usual = (loadings(*law(40, 0), sign=rule, components=components, **more) for more in ({"norm": 7.0}, {}))
    assert float(asked.vector.norm()) == pytest.approx(7 * components**0.5)
    assert float(usual.vector.norm()) == pytest.approx(len(usual.vector) ** 0.5)


def test_clients_of_one_law_agree_by_the_data_and_differ_by_ones():
    """Their direction is at right angles to all ones, and their rows lie to one side of their mean."""
    clients = [law(60, seed, skew=1.0) for seed in range(20)]
    share = {}
    for rule in ("ones", "data", "free"):
        told = torch.stack([loadings(*client, sign=rule).vector for client in clients])
        share[rule] = float(((told @ told.T) < 0).double().mean())
    assert share["ones"] > 0.3
    assert share["data"] == share["free"] == 0


def test_the_agreement_tells_a_sign_that_is_a_coin_flip_from_one_that_is_not():
    clients = [law(60, seed, skew=1.0) for seed in range(20)]
    told = {
        rule: [loadings(*client, sign=rule).agreement[0] for client in clients] for rule in ("ones", "data", "free")
    }
    assert 4 < sum(number < 0 for number in told["ones"]) < 16
    assert min(told["data"]) > STEADY
    assert min(told["free"]) > STEADY


def test_of_rows_without_a_direction_of_their_own_halves_do_not_agree():
    x = torch.randn(60, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = loadings(x, torch.zeros(60).long())
    assert found.agreement[0] < STEADY


def test_halves_of_too_few_rows_tell_nothing_and_a_half_without_directions_agrees_with_nothing():
    assert loadings(*law(19, 0)).agreement == (None,)
    assert loadings(*law(20, 0)).agreement[0] is not None
    x = torch.zeros(20, 8, dtype=torch.float64)
    x[-1, 0] = 1.0  # one row in twenty differs, so one half of them has no direction
    for rule in RULES:
        assert loadings(x, torch.zeros(20).long(), sign=rule).agreement == (0.0,)

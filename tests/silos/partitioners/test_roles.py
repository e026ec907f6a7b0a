"""Roles: some clients train, fresh ones have a known law, unseen ones a law that nobody trained on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silos.errors import UserError

DOMAINS = ["art", "cartoon", "photo", "sketch"]


@pytest.fixture(scope="session")
def pictures(numbered):
    def build(per_domain: int = 12):
        return numbered(4 * per_domain, domain=np.repeat(DOMAINS, per_domain))

    return build


EQUAL = {"kind": "equal", "clients": 12, "within": "domain"}


@given(held=st.sets(st.sampled_from(DOMAINS), min_size=1, max_size=3))
def test_all_clients_of_a_held_out_domain_are_unseen_and_no_others(pictures, make, held):
    made = make(pictures(), EQUAL, {"kind": "hold_out", "domains": sorted(held)})
    for client in made.clients:
        assert client.role == ("unseen" if client.domain in held else "federated")
    assert sum(client.role == "unseen" for client in made.clients) == 3 * len(held)


@given(per_domain=st.integers(1, 2), held=st.sampled_from([None, "photo"]))
def test_the_last_clients_of_every_domain_are_fresh(pictures, make, per_domain, held):
    steps = [EQUAL, {"kind": "fresh", "per_domain": per_domain}]
    steps[1:1] = [] if held is None else [{"kind": "hold_out", "domains": [held]}]
    made = make(pictures(), *steps)
    for domain in DOMAINS:
        roles = [client.role for client in made.clients if client.domain == domain]
        if domain == held:
            assert roles == ["unseen"] * 3
        else:
            assert roles == ["federated"] * (3 - per_domain) + ["fresh"] * per_domain


def test_without_domains_the_last_of_all_are_fresh(numbered, make):
    made = make(numbered(9), {"kind": "equal", "clients": 3}, {"kind": "fresh", "per_domain": 1})
    assert [client.role for client in made.clients] == ["federated", "federated", "fresh"]


def test_an_angle_can_be_held_out(make, numbered):
    rows = numbered(12, 3)
    rows = type(rows)(x=np.zeros((12, 3, 3), np.uint8), y=rows.y, classes=rows.classes)
    steps = [
        {"kind": "equal", "clients": 3},
        {"kind": "rotation", "angles": [0, 45, 90]},
        {"kind": "hold_out", "domains": ["rot45"]},
    ]
    assert [client.role for client in make(rows, *steps).clients] == ["federated", "unseen", "federated"]


def test_a_role_changes_no_row(pictures, make):
    plain = make(pictures(), EQUAL, test=0.25).clients
    made = make(pictures(), EQUAL, {"kind": "hold_out", "domains": ["art"]}, test=0.25).clients
    for one, other in zip(plain, made, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.split, other.split)


def test_a_domain_that_is_the_only_one_or_is_none_cannot_be_held_out(numbered, pictures, make):
    only = numbered(9, domain=np.full(9, "photo"))
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`hold_out`\): domains: got the only domain, 'photo'"):
        make(only, {"kind": "equal", "clients": 3}, {"kind": "hold_out", "domains": ["photo"]})
    with pytest.raises(UserError, match=r"\(`hold_out`\): domains: got every domain that trains, expected one left"):
        make(pictures(), EQUAL, {"kind": "hold_out", "domains": DOMAINS})
    with pytest.raises(UserError, match=r"\(`hold_out`\): domains: got every domain that trains, expected one left"):
        make(
            pictures(),
            EQUAL,
            {"kind": "hold_out", "domains": ["art"]},
            {"kind": "hold_out", "domains": ["cartoon", "photo", "sketch"]},
        )
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`hold_out`\): domains: got 'draft', expected one of"):
        make(pictures(), EQUAL, {"kind": "hold_out", "domains": ["draft"]})
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`hold_out`\): domains: got 'photo', expected one of a"):
        make(numbered(9), {"kind": "equal", "clients": 3}, {"kind": "hold_out", "domains": ["photo"]})


def test_a_domain_keeps_a_client_to_train_on(pictures, numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`fresh`\): per_domain: got 3, expected fewer than the"):
        make(pictures(), EQUAL, {"kind": "fresh", "per_domain": 3})
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`fresh`\): per_domain: got 2, expected fewer than the"):
        make(numbered(9), {"kind": "equal", "clients": 2}, {"kind": "fresh", "per_domain": 2})

"""What a server takes in of visits: sums as they are, or the largest share that leaves every cavity proper."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from models.gaussians import PRECISION, PULL
from tasks.expectation_propagation import absorb_apart, absorb_sites, divide_out
from tasks.messages.round_messages import SiteUpdates

PLACE = {"a": 0, "b": 1, "c": 2}
LEAST = 0.1


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def message(clients, sums=None, steps=None):
    nothing = torch.zeros(len(clients))
    return SiteUpdates(
        tuple(clients), nothing.long(), sums or {}, nothing, nats=nothing, unsent=nothing.long(), steps=steps or {}
    )


def law(precision, pull=0.0):
    return {"w" + PRECISION: numbers(*precision), "w" + PULL: numbers(*[pull] * len(precision))}


def test_it_adds_sums_in_float64_and_gives_plain_weights_back_as_they_were():
    known = {**law([1.0, 2.0]), "b": torch.tensor([0.5])}
    tiny = 2.0**-30
    sums = [{**law([3.0, 1e-12], pull=1.0), "b": numbers(tiny)}] * 2
    found = absorb_sites.fn([message("ab", sums[0]), message("c", sums[1])], known)
    assert torch.equal(found["w" + PRECISION], numbers(7.0, 2.0 + 1e-12 + 1e-12))
    assert torch.equal(found["w" + PULL], numbers(2.0, 2.0))
    assert found["b"].dtype == torch.float32
    assert float(found["b"]) == torch.tensor(0.5 + 2 * tiny, dtype=torch.float32)
    assert all(torch.equal(absorb_sites.fn([], known)[name], t) for name, t in known.items())


def test_every_client_s_step_goes_to_its_own_site_and_all_of_them_to_the_server():
    known, sites = law([5.0]), {n: torch.zeros(3, 1).double() for n in law([0.0])}
    steps = {"w" + PRECISION: numbers(1.0, 2.0)[:, None], "w" + PULL: numbers(-1.0, 4.0)[:, None]}
    later = {"w" + PRECISION: numbers(3.0)[:, None], "w" + PULL: numbers(0.0)[:, None]}
    found = absorb_apart.fn([message("ca", steps=steps), message("b", steps=later)], known, sites, PLACE, LEAST)
    assert found.damping == 1
    assert found.sites["w" + PRECISION][:, 0].tolist() == [2, 3, 1]
    assert found.sites["w" + PULL][:, 0].tolist() == [4, 0, -1]
    assert found.known["w" + PRECISION].tolist() == [11]
    assert found.known["w" + PULL].tolist() == [3]


PRECISIONS = some.lists(some.floats(-20, 20), min_size=6, max_size=6)


@given(PRECISIONS, PRECISIONS)
def test_it_takes_the_largest_share_after_which_the_server_and_every_cavity_are_proper_else_nothing(held, steps):
    """By trying them one after another, client by client."""
    sites = {n: numbers(*held).view(3, 2) for n in law([0.0])}
    known = {n: numbers(100.0, 100.0) + site.sum(0) for n, site in sites.items()}
    known["w" + PRECISION] = numbers(25.0, 25.0) + sites["w" + PRECISION].sum(0).clamp_min(-24)
    of_clients = {n: numbers(*steps).view(3, 2) for n in sites}
    plain = {"b": torch.tensor([1.0])}
    found = absorb_apart.fn([message("abc", {"b": numbers(8.0)}, of_clients)], {**known, **plain}, sites, PLACE, LEAST)

    def proper(share):
        after = known["w" + PRECISION] + share * of_clients["w" + PRECISION].sum(0)
        without = [after - sites["w" + PRECISION][at] - share * of_clients["w" + PRECISION][at] for at in range(3)]
        return all((one >= LEAST).all() for one in (after, *without))

    expected = next((share for share in (2.0**-n for n in range(11)) if proper(share)), 0.0)
    assert found.damping == expected
    for name, site in sites.items():
        assert torch.equal(found.sites[name], site + expected * of_clients[name])
        torch.testing.assert_close(found.known[name], known[name] + expected * of_clients[name].sum(0))
    assert float(found.known["b"]) == 1 + 8 * expected


@pytest.mark.parametrize(("step", "share"), [(-0.8 * 1024, 1 / 1024), (-0.8 * 2048, 0)])
def test_the_tenth_halving_is_the_last_that_is_tried(step, share):
    sites = {n: torch.zeros(3, 1).double() for n in law([0.0])}
    steps = {"w" + PRECISION: numbers(step)[:, None], "w" + PULL: numbers(0.0)[:, None]}
    found = absorb_apart.fn([message("b", steps=steps)], law([1.0]), sites, PLACE, LEAST)
    assert found.damping == share
    assert float(found.known["w" + PRECISION]) == pytest.approx(1 + share * step)


def test_without_a_least_precision_it_takes_the_whole_and_sites_may_keep_another_share():
    known, sites = law([1.0]), {n: torch.zeros(3, 1).double() for n in law([0.0])}
    steps = {n: numbers(-5.0)[:, None] for n in sites}
    found = absorb_apart.fn([message("b", steps=steps)], known, sites, PLACE, None, 0.5)
    assert found.damping == 1
    assert found.known["w" + PRECISION].tolist() == [-4]
    assert found.sites["w" + PRECISION][:, 0].tolist() == [0, -2.5, 0]


@given(PRECISIONS, some.lists(some.sampled_from("abc"), min_size=1, unique=True))
def test_of_those_who_leave_the_largest_share_is_divided_out_that_leaves_server_and_cavities_proper(held, gone):
    """By trying shares one after another, client by client; the others' sites and plain weights stay as they are."""
    sites = {n: numbers(*held).view(3, 2) for n in law([0.0])}
    known = {n: 8.0 + site.sum(0).clamp_min(-7) for n, site in sites.items()}
    plain = {"b": torch.tensor([1.0])}
    found = divide_out.fn(gone, {**known, **plain}, sites, PLACE, LEAST)

    def left(share, name):
        return [site * (1 - share) if client in gone else site for client, site in zip("abc", sites[name], strict=True)]

    def proper(share):
        server = known["w" + PRECISION] - share * sum(sites["w" + PRECISION][PLACE[client]] for client in gone)
        return all((one >= LEAST).all() for one in (server, *(server - site for site in left(share, "w" + PRECISION))))

    expected = next((share for share in (2.0**-n for n in range(11)) if proper(share)), 0.0)
    assert found.damping == expected
    for name, site in sites.items():
        torch.testing.assert_close(found.sites[name], torch.stack(left(expected, name)))
        taken = expected * sum(site[PLACE[client]] for client in gone)
        torch.testing.assert_close(found.known[name], known[name] - taken)
    assert torch.equal(found.known["b"], plain["b"])


def test_where_nothing_guards_all_of_it_is_divided_out_and_the_server_may_be_no_law():
    sites = {n: numbers(9.0, 1.0, -2.0)[:, None] for n in law([0.0])}
    found = divide_out.fn(["a"], law([5.0]), sites, PLACE, None)
    assert (found.damping, float(found.known["w" + PRECISION])) == (1.0, -4)
    assert found.sites["w" + PRECISION][:, 0].tolist() == [0, 1, -2]

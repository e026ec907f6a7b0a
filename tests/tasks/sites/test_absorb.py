"""What the server takes of steps that would leave no law."""

import pytest
import torch

from tasks.messages import SiteSteps
from tasks.sites.absorb import absorb_apart

PLACE = {"a": 0, "b": 1}


def told(**precisions: float) -> list[SiteSteps]:
    """Every client's step of one weight: no pull, this precision; and 1 of a bias that is a number, for all together."""
    messages = []
    for client, precision in precisions.items():
        steps = {"w.pull": torch.zeros(1, 1), "w.precision": torch.tensor([[precision]])}
        nothing = torch.zeros(1)
        double = {name: t.double() for name, t in steps.items()}
        sums = {"b": torch.tensor([0.5], dtype=torch.float64)}
        messages.append(
            SiteSteps((client,), torch.ones(1), sums, nothing, nats=nothing, unsent=nothing.long(), steps=double)
        )
    return messages


def absorbed(
    messages: list[SiteSteps], least: float | None, server: float = 5.0, sites: tuple[float, ...] = (2.0, 2.0)
):
    known = {"w.pull": torch.zeros(1), "w.precision": torch.tensor([server]), "b": torch.zeros(1)}
    known = {name: t if name == "b" else t.double() for name, t in known.items()}
    held = {"w.pull": torch.zeros(2, 1), "w.precision": torch.tensor(sites)[:, None]}
    held = {name: t.double() for name, t in held.items()}
    return absorb_apart.fn(messages, known, held, PLACE, least)


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ({"a": -1.0, "b": -1.0}, 1.0),  # the server 3, cavities 2
        ({"a": -1.0, "b": -3.0}, 0.5),  # 5 - 4 = 1 is proper, a's cavity 5 - 2 - 3 = 0 is not; of half it is 1.5
        ({"a": 9.0, "b": -6.0}, 0.25),  # of all a's cavity is 3 - 6, of half 0, of a quarter 1.5
    ],
)
def test_of_steps_the_largest_share_is_taken_that_leaves_server_and_cavities_proper(steps, share):
    after = absorbed(told(**steps), least=0.1)
    assert after.damping == share
    assert float(after.known["w.precision"]) == 5 + share * sum(steps.values())
    assert after.sites["w.precision"][:, 0].tolist() == [2 + share * step for step in steps.values()]
    assert float(after.known["b"]) == share


def test_where_no_share_does_nothing_is_taken():
    after = absorbed(told(a=-1.0), least=4.0)
    assert after.damping == 0
    assert float(after.known["w.precision"]) == 5
    assert float(after.known["b"]) == 0
    assert after.sites["w.precision"][:, 0].tolist() == [2, 2]


def test_without_a_guard_precisions_may_end_below_nothing():
    after = absorbed(told(a=-9.0), least=None)
    assert (after.damping, float(after.known["w.precision"])) == (1.0, -4)

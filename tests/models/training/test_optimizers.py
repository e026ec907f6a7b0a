"""Every optimiser against torch.optim on the same gradients."""

import pytest
import torch

from models.training.optimizers import SGD, Adam, expand_clients, freeze

CLIENTS, STEPS = 3, 12
CASES = [
    (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (SGD(0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.05)),
    (SGD(0.05, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
    (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    (Adam(0.01, 0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
    (Adam(0.01, 0.1, decoupled=True), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
]
IDS = ["sgd", "sgd-decay", "momentum-decay", "adam", "adam-decay", "adamw"]


def stack_of(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "matrix": torch.randn(CLIENTS, 4, 3, generator=draw, dtype=dtype),
        "vector": torch.randn(CLIENTS, 5, generator=draw, dtype=dtype),
        "number": torch.randn(CLIENTS, generator=draw, dtype=dtype),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=IDS)
def test_steps_equal_torch_optim_on_the_same_gradients(ours, theirs, dtype):
    weights = stack_of(0, dtype)
    parameters = {name: torch.nn.Parameter(w.clone()) for name, w in weights.items()}
    state, reference = ours.init(weights, CLIENTS), theirs(list(parameters.values()))
    for step in range(STEPS):
        grads = stack_of(step + 1, dtype)
        weights, state = ours.step(weights, grads, state)
        for name, p in parameters.items():
            p.grad = grads[name].clone()
        reference.step()
    for name, p in parameters.items():
        # torch counts Adam's steps in double precision, we in float32
        torch.testing.assert_close(weights[name], p.detach(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=IDS)
def test_a_client_steps_the_same_alone_and_in_a_stack(ours, theirs):
    weights, alone = stack_of(0, torch.float32), {n: w[1:2] for n, w in stack_of(0, torch.float32).items()}
    state, state_alone = ours.init(weights, CLIENTS), ours.init(alone, 1)
    for step in range(4):
        grads = stack_of(step + 1, torch.float32)
        weights, state = ours.step(weights, grads, state)
        alone, state_alone = ours.step(alone, {n: g[1:2] for n, g in grads.items()}, state_alone)
    for name in weights:
        torch.testing.assert_close(weights[name][1:2], alone[name], rtol=1e-6, atol=1e-7)


def test_freeze_keeps_every_bit_of_the_clients_that_rest():
    new, old = stack_of(0, torch.float32), stack_of(1, torch.float32)
    mixed = freeze(torch.tensor([True, False, True]), new, old)
    for name in new:
        assert torch.equal(mixed[name][1], old[name][1])
        assert torch.equal(mixed[name][[0, 2]], new[name][[0, 2]])


def test_freeze_lets_no_nan_of_a_resting_client_through():
    old, nan = stack_of(1, torch.float32), {n: w * torch.nan for n, w in stack_of(0, torch.float32).items()}
    assert all(torch.equal(t, old[n]) for n, t in freeze(torch.zeros(3, dtype=torch.bool), nan, old).items())


def test_along_broadcasts_a_number_for_each_client():
    per_client = torch.tensor([1.0, 2.0, 3.0])
    assert expand_clients(per_client, torch.zeros(3, 4, 5)).shape == (3, 1, 1)
    assert expand_clients(per_client, torch.zeros(3)).shape == (3,)

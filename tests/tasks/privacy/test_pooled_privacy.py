"""Pooled training with privacy: one noise over the rows of all silos, for which each of them pays."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.pooled import Pooled
from models.networks.mlp import MLP
from models.training.engine import Privacy
from models.training.optimizers import SGD
from silos.client_store import ClientStore
from silos.cohort import make_stacks
from silos.errors import RefusalError
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import make_store, policy_of
from silos.storage.partition_store import open_client
from tasks.execution.load_client_data import load_rows
from tasks.privacy.record_answers import AnswerRecord, cost_of_run, shares_of_rows

SIZES = {"a": 13, "b": 5, "c": 8}
FEATURES, CLASSES = 5, 3
CLIP, DIVISOR, RATE = 0.25, 10.0, 4.0
SILENT = 0.01
"""A noise multiplier far below what is compared; the budget of the stores is raised for it."""
REST = 0.04
"""Ten deviations of the length of two such noises, on 18 numbers."""


def private(noise, clip=CLIP, rounds=2):
    return {
        "epochs": 1,
        "optimiser": SGD(RATE),
        "network": MLP(FEATURES, (), CLASSES),
        "privacy": Privacy(clip, noise, DIVISOR, rounds),
    }


@pytest.fixture
def rich(tmp_path):
    """A store whose owner allows any budget, and which other stores copy."""
    return store(tmp_path / "rich")


def store(folder, budget="1.0e+06"):
    make_store(folder)
    path = folder / "owner.yaml"
    text = path.read_text(encoding="utf-8").replace("other_silos: false", "other_silos: true")
    path.write_text(text.replace("budget: 8.0", f"budget: {budget}"), encoding="utf-8")
    return ClientStore(str(folder))


def first_rows(client, count):
    """The first of a client's rows, so that one less is the same but the last."""
    draw = np.random.default_rng(list(client.encode()))
    y = np.arange(20) % CLASSES
    return (2 * np.eye(CLASSES, FEATURES)[y] + draw.normal(size=(20, FEATURES)))[:count], y[:count]


def step_of(setup, played, before):
    """What the server divided out of the step: the noisy sum over the rows of all silos, by name."""
    after = played.state.tensors["weights"]
    return {name: (before[name] - after[name]).double() * DIVISOR * len(SIZES) / RATE for name in after}


def length(sums):
    return math.sqrt(sum(float(part.square().sum()) for part in sums.values()))


def entries(private_store, client):
    folder = Path(private_store.folder)
    return Ledger(str(folder), client, policy_of(folder, client)).entries()


def test_the_step_is_the_clipped_sum_over_all_rows_by_the_total_of_the_divisors(make_problem, play, rich):
    setup = make_problem(SIZES, **private(SILENT))
    start = Pooled().init(setup).tensors["weights"]
    found = step_of(setup, play(Pooled(), setup, [1], private=rich), start)
    expected = {name: torch.zeros(w.shape, dtype=torch.float64) for name, w in start.items()}
    clipped = 0
    for client in SIZES:
        for x, y in zip(
            *open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), "train"), strict=True
        ):
            leaves = {name: w.double().requires_grad_() for name, w in start.items()}
            logits = torch.from_numpy(x).double() @ leaves["dense0.weight"] + leaves["dense0.bias"]
            torch.nn.functional.cross_entropy(logits[None], torch.tensor([int(y)])).backward()
            norm = length({name: leaf.grad for name, leaf in leaves.items()})
            clipped += norm > CLIP
            for name, leaf in leaves.items():
                expected[name] += leaf.grad * min(1.0, CLIP / norm)
    assert clipped > 5
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0.02)


@pytest.mark.parametrize("client", SIZES)
def test_one_row_less_at_any_silo_changes_what_is_noised_by_at_most_the_clip_norm(make_problem, play, rich, client):
    setup = make_problem(SIZES, silos={"rows_of": first_rows, "test": 0, "validation": 0}, **private(SILENT))
    fewer = SIZES | {client: SIZES[client] - 1}
    silos = {"rows_of": first_rows, "test": 0, "validation": 0, "name": "less"}
    less = make_problem(fewer, silos=silos, **private(SILENT))
    start = Pooled().init(setup).tensors["weights"]
    whole, rest = (step_of(one, play(Pooled(), one, [1], private=rich), start) for one in (setup, less))
    change = length({name: whole[name] - rest[name] for name in whole})
    assert 0.5 * CLIP < change <= CLIP + REST


def test_rows_of_a_unit_count_together_at_each_of_the_pooled_silos(make_problem, monkeypatch):
    silos = make_problem(SIZES, **private(SILENT)).silos.pool()
    size = {"a": 4, "b": 5, "c": 2}  # rows of a unit at each silo; a unit of two silos counts once at each
    monkeypatch.setattr(
        "tasks.privacy.record_answers.open_units",
        lambda _, entries, split: np.arange(entries[0].rows[split]) // size[entries[0].name],
    )
    (stack,) = make_stacks(silos, 1)
    (shares,) = shares_of_rows(silos, stack, load_rows(silos, stack, "train", "cpu"))
    of_units = ([4, 4, 4, 1], [5], [2, 2, 2, 2])
    expected = [1 / rows for units in of_units for rows in units for _ in range(rows)]
    torch.testing.assert_close(shares, torch.tensor(expected))


def test_each_silo_registers_its_own_rows(make_problem, rich, monkeypatch):
    """By the register no other silo reports them; that of another silo's rows would let them be reported twice."""
    setup, seen = make_problem(SIZES, **private(SILENT)), {}
    monkeypatch.setattr(
        "tasks.privacy.record_answers._register", lambda _, owner, x, y, *_of: seen.update({owner: (x, y)})
    )
    silos = setup.silos.pool()
    (stack,) = make_stacks(silos, 1)
    record = AnswerRecord.open(silos, stack, setup.training, rich)
    rows = load_rows(silos, stack, "train", "cpu")
    for ledger, register in zip(record.ledgers[0], record._registers(rows, 0), strict=True):
        register(ledger)
    assert seen.keys() == SIZES.keys()
    for (entry,) in (setup.silos.entries(client) for client in SIZES):
        for own, expected in zip(seen[entry.name], open_client(Path(silos.folder), entry, "train"), strict=True):
            np.testing.assert_array_equal(own.numpy(), expected)


def test_each_silo_pays_what_noise_of_its_own_would_cost(make_problem, play, tmp_path):
    setup = make_problem(SIZES, **private(8.0))
    for page, folder in ((Pooled(), "pooled"), (FedAvg(), "each")):
        paid = store(tmp_path / folder)
        play(page, setup, [1, 2], private=paid)
        for client in SIZES:
            assert [entry.rho for entry in entries(paid, client)] == [cost_of_run(setup.training.privacy, 1)]


def test_a_round_that_is_repeated_has_the_same_bits_and_costs_nothing(make_problem, play, rich):
    setup = make_problem(SIZES, **private(8.0))
    first = play(Pooled(), setup, [1], private=rich)
    second = play(Pooled(), setup, [2], state=first.state, private=rich)
    again = play(Pooled(), setup, [1, 2], private=rich)
    assert again.state.sha256() == second.state.sha256()
    assert all(len(entries(rich, client)) == 1 for client in SIZES)


def test_the_noise_needs_the_secret_of_every_silo(make_problem, play, tmp_path, rich):
    setup = make_problem(SIZES, **private(8.0))
    first = play(Pooled(), setup, [1], private=rich).state.sha256()
    homes = [path.parent for path in Path(rich.folder).rglob("secret") if path.parent.name[0] in SIZES]
    assert len(homes) == len(SIZES)
    for missing in (None, *homes):
        folder = tmp_path / f"without {missing and missing.name}"
        other = store(folder)
        for home in homes:
            if home != missing:
                (folder / home.relative_to(rich.folder)).mkdir(parents=True)
                shutil.copy(home / "secret", folder / home.relative_to(rich.folder) / "secret")
        same = play(Pooled(), setup, [1], private=other).state.sha256() == first
        assert same == (missing is None)


def test_the_noise_is_one_and_as_large_as_that_of_one_silo(make_problem, play, rich):
    wide = {**private(1e3), "network": MLP(FEATURES, (4000,), CLASSES)}
    setup = make_problem(SIZES, **wide)
    start = Pooled().init(setup).tensors["weights"]
    found = step_of(setup, play(Pooled(), setup, [1], private=rich), start)
    numbers = torch.cat([part.flatten() for part in found.values()])
    assert len(numbers) > 30_000
    assert float(numbers.std()) == pytest.approx(1e3 * CLIP, rel=0.05)


def test_a_silo_that_cannot_pay_stops_the_round_of_all(make_problem, play, tmp_path):
    setup = make_problem(SIZES, **private(0.1))
    poor = store(tmp_path / "poor", budget="8.0")
    with pytest.raises(RefusalError, match="budget"):
        play(Pooled(), setup, [1], private=poor)


def test_the_order_of_silos_changes_the_noise_alone(make_problem, play, rich):
    setup = make_problem(SIZES, **private(SILENT))
    turned = replace(setup, silos=setup.silos.select(tuple(SIZES)[::-1]))
    start = Pooled().init(setup).tensors["weights"]
    one, other = (step_of(each, play(Pooled(), each, [1], private=rich), start) for each in (setup, turned))
    assert 0 < length({name: one[name] - other[name] for name in one}) < REST

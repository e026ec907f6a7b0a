"""`siloflow audit`: right training shows what it claims, and each planted fault is found."""

import hashlib
import itertools
import json

import numpy as np
import pytest
import torch

from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.audit_privacy import audit_privacy
from models.training import private_training
from models.training.private_training import _Clipping
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import OWNER_FILE
from tasks.privacy import train_with_noise
from tasks.privacy.record_answers import noise_for

NOISY = (
    "training.privacy.epsilon=4",
    "training.rounds=10",
    "training.epochs=1",
    "training.optimiser.learning_rate=0.5",
)
SUMS = ("training.privacy={epsilon: 4, secure_sums: true}", *NOISY[1:])


@pytest.fixture(autouse=True)
def _same_secrets(monkeypatch):
    """Give silos the same noise in every test, so that no test is decided by chance."""
    number = itertools.count()
    monkeypatch.setattr(
        "silos.privacy.secret.secrets.token_bytes", lambda size: hashlib.sha256(b"%d" % next(number)).digest()[:size]
    )


@pytest.fixture
def audit(project):
    def run(*overrides, **options):
        opened = Project.open([*NOISY, *overrides], project, derived=True)
        result = audit_privacy(opened, **options)
        assert not (project / "cache" / "audit").exists()
        return result

    return run


@pytest.mark.parametrize("network", ["[]", "[30]"])
def test_right_training_shows_about_what_it_claims(network, audit):
    found = audit(f"model.hidden={network}", canaries=200)
    assert (found["client"], found["silos"], found["rounds"], found["canaries"]) == ("c00", 1, 10, 200)
    assert found["faults"] == []
    assert found["noise"] == pytest.approx(1, abs=0.03)
    assert found["weakest"]["noise"] == pytest.approx(1, abs=0.1)
    assert found["claimed"]["mu"] == pytest.approx(0.925, abs=0.001)
    assert 0.5 < found["mu"] < 1.3
    assert 0.3 < found["least_mu"] < found["mu"]
    assert 1 < found["least_epsilon"] < 4
    assert found["least_epsilon_by_guesses"] < found["most_epsilon_by_guesses"]
    assert found == audit(f"model.hidden={network}", canaries=200, client="c00", seed=0) | {
        name: found[name] for name in found if name not in ("client", "silos", "rows", "inside")
    }


def test_an_audit_reads_no_row_of_the_one_before(audit):
    """Once, the rows of the first audit of a process were those of all others, too."""
    audit("model.hidden=[]", canaries=20)
    found = audit("model.hidden=[]", canaries=200, seed=1)
    assert (found["canaries"], found["faults"]) == (200, [])
    assert 0.5 < found["mu"] < 1.3


def test_local_epochs_are_audited_as_rounds(audit):
    found = audit("training.epochs=3", canaries=20)
    assert (found["rounds"], found["faults"]) == (30, [])
    assert found["noise"] == pytest.approx(1, abs=0.02)


def test_secure_sums_have_the_noise_of_more_silos_than_is_counted_on(audit):
    found = audit(*SUMS, canaries=100)
    silos = found["silos"]
    assert silos > 2
    assert found["faults"] == []
    assert found["noise"] == pytest.approx((silos / (silos - 1)) ** 0.5, abs=0.03), "one silo may be a colluder"


@pytest.fixture
def own(world):
    """A project of own data: a regression of 120 machines with three rows each, in two silos."""
    made, random = world(), np.random.default_rng(0)
    machine = np.repeat(np.arange(120), 3)
    x = random.normal(5, 2, (360, 4)).astype(np.float32)
    arrays = {"x": x, "y": x @ np.arange(4.0) + random.normal(size=360), "client": machine % 2, "machine": machine}
    np.savez(made.folder / "own.npz", **arrays)
    made.raw["data"] = {
        "name": "own",
        "seed": 0,
        "source": {"kind": "npz", "path": "own.npz", "task": "regression", "unit": "machine"},
        "scheme": [{"kind": "column", "column": "client"}],
        "split": {"validation": 0.1, "test": 0.1},
    }
    made.raw["training"]["objective"] = {"kind": "squared_error"}
    made.raw["evaluation"]["metric"] = None
    (made.folder / "params.yaml").write_text(json.dumps(made.raw))
    make(made.open())
    return made


def test_own_rows_are_audited_if_their_owner_reads_them_and_units_count_once(own):
    settings = (*NOISY, "model.hidden=[]", "training.privacy.clip=10", "training.optimiser.learning_rate=0.001")
    with pytest.raises(
        RefusalError, match=r"Their owner may set owners_view: true in .*owner\.yaml, audit, and set it back"
    ):
        audit_privacy(own.open(*settings))
    owner = own.folder / "private" / "own" / OWNER_FILE
    owner.write_text(owner.read_text().replace("owners_view: false", "owners_view: true"))
    found = audit_privacy(own.open(*settings), canaries=20)
    assert (found["client"], found["faults"]) in [("0", []), ("1", [])]
    assert found["noise"] == pytest.approx(1, abs=0.3)
    assert not any((owner.parent / ".opened").iterdir()), "the silos' own ledgers have paid nothing"


def _half_the_noise(monkeypatch):
    add = private_training._add_noise
    monkeypatch.setattr(
        private_training, "_add_noise", lambda total, drawn, deviation: add(total, drawn, deviation / 2)
    )


def _no_noise(monkeypatch):
    monkeypatch.setattr(private_training, "_add_noise", lambda *_: None)


def _no_noise_on_the_biases(monkeypatch):
    draw = train_with_noise.draw_noise

    def some(*args):
        return {n: own if own[0].dim() > 1 else torch.zeros_like(own) for n, own in draw(*args).items()}

    monkeypatch.setattr(train_with_noise, "draw_noise", some)


def _the_same_noise_in_each_round(monkeypatch):
    draw, first = train_with_noise.draw_noise, []

    def same(*args):
        first[:] = first or [draw(*args)]
        return {name: own.clone() for name, own in first[0].items()}

    monkeypatch.setattr(train_with_noise, "draw_noise", same)


def _noise_that_the_next_round_takes_back(monkeypatch):
    draw, drawn = train_with_noise.draw_noise, []

    def alternate(*args):
        drawn.append(draw(*args) if len(drawn) % 2 == 0 else {name: -own for name, own in drawn[-1].items()})
        return {name: own.clone() for name, own in drawn[-1].items()}

    monkeypatch.setattr(train_with_noise, "draw_noise", alternate)


def _no_clipping(monkeypatch):
    monkeypatch.setattr(_Clipping, "_scale", lambda _, squares, shares: torch.ones_like(squares) * shares)


def _noise_of_one_round_for_all(monkeypatch):
    monkeypatch.setattr(
        "flows.training.training_setup.noise_for", lambda *target_and_steps: noise_for(*target_and_steps[:2], 1)
    )


FAULTS = {
    _half_the_noise: "noise",
    _no_noise: "noise",
    _no_noise_on_the_biases: "noise",
    _the_same_noise_in_each_round: "related noise",
    _noise_that_the_next_round_takes_back: "related noise",
    _no_clipping: "canaries",
    _noise_of_one_round_for_all: "noise",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_fault_is_found(plant, audit, monkeypatch):
    plant(monkeypatch)
    assert FAULTS[plant] in audit("model.hidden=[30]", canaries=200)["faults"]


@pytest.mark.parametrize(
    ("overrides", "options", "sentence"),
    [
        (["training.privacy.epsilon=null"], {}, r"training\.privacy\.epsilon: got null, expected a number"),
        (
            ["training.optimiser={kind: adam, learning_rate: 0.1}"],
            {},
            r"training\.optimiser: got a step that is no multiple",
        ),
        ([], {"client": "c0"}, r"--client: got no silo 'c0' that trains\. Did you mean"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_a_way_out(overrides, options, sentence, audit):
    with pytest.raises(UserError, match=sentence):
        audit(*overrides, **options)

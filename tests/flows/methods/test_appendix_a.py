"""docs/appendix-a.md: what is true of a client's worst loss, and where FedAvg ends on quadratics."""

import re
from pathlib import Path

import numpy as np
import pytest

from flows.methods.fedavg import FedAvg
from models.networks.mlp import MLP
from models.training.objectives import SquaredError
from models.training.optimizers import SGD

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "appendix-a.md").read_text(encoding="utf-8")


def table(header: str) -> list[tuple[float, float]]:
    """The rows of the page's table whose first column is called so."""
    (rows,) = re.findall(rf"^\| {header} \|.*\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [tuple(float(cell) for cell in row.strip("|").split("|")) for row in rows.splitlines()]


def two_clients(p, m, c, a=1.0):
    """Each one's loss at w* beyond its least, and that least; F_k = a / 2 (w - m_k)^2 + c_k."""
    w = (p * m).sum()
    return a / 2 * (w - m) ** 2, c


@pytest.mark.parametrize("seed", range(20))
def test_what_clients_lose_adds_up_to_gamma_and_none_loses_more_than_gamma_over_its_share(seed):
    draw = np.random.default_rng(seed)
    clients, d = draw.integers(2, 6), draw.integers(1, 5)
    p = draw.dirichlet(np.ones(clients))
    half = draw.normal(size=(clients, d, d))
    a, m, c = half @ half.transpose(0, 2, 1) + np.eye(d), draw.normal(size=(clients, d)), draw.random(clients)
    hessian, slope = np.einsum("k,kij->ij", p, a), np.einsum("k,kij,kj->i", p, a, m)
    w = np.linalg.solve(hessian, slope)
    least = np.einsum("k,ki,kij,kj->", p, m, a, m) / 2 - slope @ w / 2 + p @ c  # completing the square, not F(w)
    gamma, lost = least - p @ c, np.einsum("ki,kij,kj->k", w - m, a, w - m) / 2
    assert p @ lost == pytest.approx(gamma, abs=1e-10)
    assert (lost <= gamma / p + 1e-10).all()


def test_the_bound_is_reached_only_as_the_clients_share_goes_to_nothing():
    for share, printed in table("p_2"):
        p = np.array([1 - share, share])
        lost, _ = two_clients(p, np.array([0.0, 3.0]), np.ones(2), a=2.0)
        assert lost[1] / (p @ lost / share) == pytest.approx(printed, abs=1e-10)


def test_a_clients_loss_is_any_multiple_of_its_least():
    for multiple, distance in table("C"):
        lost, least = two_clients(np.array([0.9, 0.1]), np.array([0.0, distance]), np.ones(2))
        assert lost[1] + least[1] == pytest.approx(multiple * least[1], rel=1e-6)


P, A, M, H = np.array([0.6, 0.3, 0.1]), np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 5.0]), 0.1


@pytest.fixture
def lines(make_problem):
    """Linear regressions whose mean squared error is a_k / 2 (w - m_k)^2 + b^2: of x and -x the bias gains nothing."""

    def build(epochs, engine):
        def rows_of(client, total):
            k = "abc".index(client)
            x = np.sqrt(A[k] / 2) * np.where(np.arange(total) % 2, -1, 1)
            return x[:, None], (M[k] * x).astype(np.float32)

        rows = {client: round(20 * p) for client, p in zip("abc", P, strict=True)}
        training = {"objective": SquaredError(), "optimiser": SGD(H), "epochs": epochs, "batch": 20, "engine": engine}
        silos = {"rows_of": rows_of, "task": "regression"}
        return make_problem(rows, network=MLP(1, (), 1), silos=silos, **training)

    return build


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize(("epochs", "rounds"), [(1, 130), (2, 66), (5, 30), (20, 12)])
def test_fedavg_on_rows_ends_where_the_closed_form_says(epochs, rounds, engine, lines, play):
    q = 1 - (1 - H * A) ** epochs
    closed = (P * q * M).sum() / (P * q).sum()
    assert closed == pytest.approx(dict(table("E"))[epochs], abs=1e-6)
    weights = play(FedAvg(), lines(epochs, engine), range(1, rounds + 1)).state.tensors["weights"]
    assert float(weights["dense0.weight"]) == pytest.approx(closed, abs=2e-6)
    assert float(weights["dense0.bias"]) == pytest.approx(0, abs=2e-6)

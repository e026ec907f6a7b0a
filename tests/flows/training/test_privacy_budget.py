"""Before training, silos beyond their budgets drop out, or the command is refused; also when it is resumed."""

import math
from types import SimpleNamespace

import pytest
import torch

from flows.training import privacy_budget
from flows.training.privacy_budget import check_budgets, clients_beyond
from models.training.engine import Privacy
from silos.errors import RefusalError
from tasks.messages.statistics_messages import PrivacyCost

NAMES = ("bern", "lyon", "oslo", "rome")


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return `check_budgets` of four silos with these budgets in rho, of which this much is spent and this many are left."""

    def run(budgets, spent=0.0, left=0, answers=4, fraction=1.0, least=1):
        def ask(runner, step, silos, **_):
            asked = [name for name in NAMES if name in silos.clients]
            own = torch.tensor([float(budgets[name]) for name in asked])
            same = torch.ones(len(asked))
            return [PrivacyCost(clients=tuple(asked), **amounts(own, same))]

        def amounts(own, same):
            return {"spent": spent * same, "budget": own, "delta": 1e-5 * same, "left": left * same}

        monkeypatch.setattr(privacy_budget, "map_clients", ask)
        monkeypatch.setattr(privacy_budget, "cost_of_run", lambda *_: 1.0)

        def select(names):
            return SimpleNamespace(clients=tuple(names))

        clients = SimpleNamespace(leave={}, fraction=fraction, least=least)
        training = SimpleNamespace(privacy=SimpleNamespace(delta=1e-5))
        project = SimpleNamespace(params=SimpleNamespace(clients=clients, training=training))
        setup = SimpleNamespace(
            training=SimpleNamespace(privacy=Privacy(1.0, 1.0, 1.0, 4), epochs=1),
            silos=SimpleNamespace(clients=NAMES, select=select),
            stack=4,
        )
        private = SimpleNamespace(folder=tmp_path / "private" / "visits")
        return check_budgets(project, setup, None, private, answers, tmp_path)

    return run


def test_a_silo_beyond_its_budget_drops_out_and_stays_out_when_the_run_is_resumed(check, tmp_path):
    budgets = {**dict.fromkeys(NAMES, 5.0), "oslo": 0.5}
    for _ in range(2):
        assert "; without client oslo, beyond the budget, as if dropped out of all rounds" in check(budgets)
    assert clients_beyond(tmp_path) == {"oslo"}
    with pytest.raises(RefusalError, match=r"client lyon: training\.privacy\.epsilon: got a plan of 1 run that costs"):
        check({**budgets, "lyon": 0.5})


def test_a_run_that_is_paid_for_ends_though_the_budget_was_lowered_below_what_is_spent(check):
    check(dict.fromkeys(NAMES, 5.0))
    assert "at most 0 runs that cost epsilon 0" in check(dict.fromkeys(NAMES, 0.5), spent=1.0, left=2, answers=2)


@pytest.mark.parametrize(
    ("fraction", "least", "passes"), [(1.0, 3, True), (1.0, 4, False), (0.75, 2, True), (0.75, 3, False)]
)
def test_a_round_could_have_too_few_silos_without_those_beyond_their_budgets(fraction, least, passes, check, tmp_path):
    """Once, a resumed run was compared with what is left of those that had not dropped out before."""
    budgets = {**dict.fromkeys(NAMES, 5.0), "oslo": 0.5}
    if passes:
        check(budgets, fraction=fraction, least=least)
        assert clients_beyond(tmp_path) == {"oslo"}
    else:
        with pytest.raises(RefusalError, match="client oslo"):
            check(budgets, fraction=fraction, least=least)
        assert not (tmp_path / "beyond_budget.json").exists()
        check(budgets, fraction=fraction, least=least - 1)
        drawn = math.floor(fraction * 4)
        with pytest.raises(
            RefusalError, match=rf"clients\.least: got {least} for a round of {drawn}, expected at most"
        ):
            check(budgets, fraction=fraction, least=least)

"""One round of a method, as the loop of a run calls it."""

from dataclasses import replace

from flows.experiment.kept_optimisers import kept_optimisers
from flows.experiment.round_report import Report
from flows.method import Method
from flows.round import Round
from models.state import State


def play(page: Method, state: State, round: Round) -> tuple[State, Report]:
    """The page's round, if anybody takes part, after those have left who leave.

    Optimisers that are kept go on from where the state has them, and into it.
    """
    round, report = replace(round, optimisers=kept_optimisers(state)), Report()
    if round.leaving:
        state, report = page.leave(state, replace(round, clients=round.leaving, dropped=()))
    if round.clients:
        state, of_round = page.one_round(state, round)
        report = report.beside(of_round)
    return round.optimisers.into(state), report

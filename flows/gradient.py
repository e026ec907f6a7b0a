"""One full-batch gradient of every client and one step of the server: the round of FedSGD (McMahan et al. 2017)."""

from dataclasses import replace

from flows.method import Report
from flows.round import Round
from models.model import Model
from models.optimisers import SGD
from models.state import State, Weights
from tasks.aggregate import aggregate
from tasks.local_train import local_train

_WHOLE = 2**31 - 1  # rows in a batch: all of a client's
# a step beside which w is small: else rounding of w - g would hide small slopes, which Adam makes large
_LONG = 2.0**20


def gradient_round(state: State, round: Round, model: Model) -> tuple[State, Report]:
    """The mean gradient by rows goes into `training.optimiser`, whose state the server keeps in the section `server`.

    One step of plain descent is a gradient: a client sends w - L g, and the mean of those is w less L times the mean g.
    """
    training = round.problem.training
    one_step = replace(training, optimiser=SGD(_LONG), epochs=1, batch=_WHOLE)
    asked = replace(round, problem=replace(round.problem, training=one_step))
    updates = asked.train(local_train, model)
    now = state.tensors["weights"]
    moved = round.once(aggregate, updates, now)
    stack = {name: w[None] for name, w in now.items()}
    gradient = {name: (stack[name] - moved[name][None]) / _LONG for name in stack}
    kept: Weights = state.tensors.get("server") or training.optimiser.init(stack, 1)
    after, server = training.optimiser.step(stack, gradient, kept)
    sections: dict[str, Weights] = {"weights": {name: w[0] for name, w in after.items()}}
    if server:
        sections["server"] = server
    return state.with_tensors(**sections), Report.of(updates)

"""What the server keeps of the rows that clients are right on, and the groups that it made by them."""

from collections.abc import Sequence

import numpy as np
import torch

from flows.methods.shared.groups import members
from flows.round import Problem, Round
from models.model import Model
from models.prng import server_stream
from models.state import State
from silos.cohort import open_common
from silos.dataset import some
from silos.errors import UserError
from tasks.clustering.overlap_clustering import Overlapping, known
from tasks.messages import RightRows
from tasks.regroup import regroup, right_rows

BITS = "bits"


def nobody_yet() -> dict[str, object]:
    """The numbers of a state before there are groups."""
    return {"group": {}, "names": [], "threshold": None}


def check_common_rows(method: str, problem: Problem) -> None:
    """UserError where there are no rows on which every client can be right or wrong."""
    if problem.training.objective.task == "regression":
        raise UserError(
            f"params.yaml: the method {method} asks on which rows a client is right, and predicted numbers never are; "
            "use a source with classes, or another method."
        )
    if not problem.silos.common("validation"):
        raise UserError(
            f"params.yaml: the method {method} tries every client on the same rows, and there are none; set "
            "data.split.validation_rows to common and data.split.validation to a share."
        )


def rows_of(round: Round) -> int:
    """How many common validation rows there are."""
    return round.problem.silos.common("validation")


def unasked(problem: Problem) -> tuple[str, ...]:
    """For a person: the classes of the data that no common row has, if there are such; these rows are nobody's."""
    _, labels = open_common(problem.silos, "validation")
    there = set(np.unique(labels).tolist())
    lacking = [name for code, name in enumerate(problem.silos.manifest.classes) if code not in there]
    if not lacking:
        return ()
    which, it = (f"class {lacking[0]}", "it") if len(lacking) == 1 else (f"the classes {some(lacking)}", "them")
    return (f"none of the {len(labels)} common rows is of {which}, so clients are not compared on {it}",)


def halving(round: Round, anew: bool) -> int:
    """The seed by which these rows are halved: anew in every round, or once for all rounds."""
    return int(server_stream(round.problem.seed, round.number if anew else 0, "halves")) & 0x7FFFFFFF


def asked(model: Model, round: Round) -> list[RightRows]:
    """The bits of the model's clients."""
    silos = round.problem.silos.select(model.clients)
    return round.each(regroup, model, silos, training=round.problem.training, evidence=right_rows)


def kept(state: State) -> list[RightRows]:
    """What clients told when they were asked last."""
    if BITS not in state.tensors:
        return []
    return [RightRows(tuple(state.numbers["names"]), state.tensors[BITS]["right"])]


def latest(state: State, answers: Sequence[RightRows]) -> list[RightRows]:
    """Of everybody who told once the last: these answers, and what is kept of the others."""
    told = {client for answer in answers for client in answer.clients}
    others = []
    for answer in kept(state):
        places = [at for at, name in enumerate(answer.clients) if name not in told]
        names = tuple(answer.clients[at] for at in places)
        others.append(RightRows(names, answer.bits[places]))
    return [*answers, *others]


def grouped_as(state: State, answers: Sequence[RightRows], groups: Sequence[Sequence[str]], threshold: float) -> State:
    """The state with these groups, and the bits of all who told them."""
    names, bits = known(answers)
    group = {client: number for number, clients in enumerate(groups) for client in clients}
    return state.with_tensors(bits={"right": torch.from_numpy(bits)}).with_numbers(
        group=group, names=names, threshold=threshold
    )


def groups_of(state: State) -> list[list[str]]:
    """The clients of each group, sorted."""
    group = state.numbers["group"]
    return members(sorted(group), group, max(group.values(), default=-1) + 1)


def sentence(overlapping: Overlapping) -> str:
    """For a person: who is with whom, from which overlap on, how far apart groups are, and who was kept alone."""
    groups = "; ".join(" ".join(names) for names in overlapping.groups)
    flagged = ", ".join(overlapping.flagged)
    alone = f"; right on no common row, so alone: {flagged}" if flagged else ""
    count = "one group" if len(overlapping.groups) == 1 else f"{len(overlapping.groups)} groups"
    return f"{count} at an overlap of {overlapping.threshold:.3f}: {groups}{_apart(overlapping)}{alone}"


def _apart(overlapping: Overlapping) -> str:
    """Whether a pair of two groups overlaps less than every pair of one; nothing where there is no such pair."""
    within, across = overlapping.within, overlapping.across
    if within is None or across is None:
        return ""
    if within > across:
        return f"; pairs overlap {within:.3f} or more in a group, {across:.3f} or less across"
    return f"; not clear-cut: a pair in a group overlaps {within:.3f}, and one across {across:.3f}"

"""Every method ends with the same bits at places as on one machine, and with no row at the coordinator."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.core.plugin_loader import PluginFiles
from flows.methods.base import find_method, method_names, start_method
from flows.methods.round_context import RoundContext
from flows.training.constant_baseline import constant_prediction
from flows.training.trainer import play_method_round
from silos.errors import UserError
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST
from tasks.evaluate import evaluate
from tasks.execution.task_runner import PlainRunner

CLIENTS = {"oslo": 11, "lyon": 7, "one": 1, "same": 6, "rome": 9}
PLACES = [["lyon", "oslo", "one"], ["rome", "same"]]
SOON = {"selective": {"local_rounds": 1}, "selective_authors": {"local_rounds": 1}, "flux": {"warm_up": 1}}
BUNDLED = PluginFiles(Path()).load([])


FEW = ("conditional", "fedavg", "scaffold", "selective", "virtual")  # of each way in which messages and state travel
METHODS = [
    name if name in FEW else pytest.param(name, marks=pytest.mark.slow)
    for name in method_names(BUNDLED)
    if name != "pooled"
]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_the_same_weights_and_scores(method, make_problem, separate, at_places, stores):
    page = find_method(method, BUNDLED)(**SOON.get(method, {}))
    setup = make_problem(CLIENTS)
    try:
        page.init(setup)
    except UserError:
        setup = make_problem(CLIENTS, silos={"common": ["validation"]})
    apart = separate(setup.silos, PLACES)
    here = play(page, replace(setup, silos=apart.together), PlainRunner(), stores("here"))
    there = play(page, replace(setup, silos=apart.listed), at_places(apart), stores("there"))
    assert there == here
    folder = Path(apart.listed.folder)
    assert {file.name for file in folder.iterdir()} <= {MANIFEST, COLUMNS, COMMON}
    assert not [*Path(stores("there").folder).rglob("*.safetensors")], "private state stays at places"


def play(page, setup, runner, store):
    setup = replace(setup, stack=2)
    state, scores = page.init(setup), []
    for number in (1, 2, 3):
        context = RoundContext(number, setup, setup.silos.clients, (), runner, store)
        state, _ = play_method_round(page, state, context)
    model = page.model(state, setup)
    silos = setup.silos.select(model.clients) if model.clients else None
    for message in context.map_clients(evaluate, model, silos, training=setup.training, keep_outcomes=True):
        scores += [message.clients, {name: sums.tolist() for name, sums in message.sums.items()}, message.outcomes]
    return state.sha256(), repr(scores)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_constant_answer_is_that_of_one_machine_and_counts_sums_alone(
    task, write_silos, separate, at_places, stores
):
    apart = separate(
        write_silos({"oslo": 20, "lyon": 15, "rome": 30, "few": 4}, task=task), [["oslo", "few"], ["lyon", "rome"]]
    )
    here = constant_prediction(apart.together, PlainRunner(), stores("here"))
    assert here is not None
    assert constant_prediction(apart.listed, at_places(apart), stores("there")) == here
    assert [step for _, step, _ in apart.asked] == ["sum_targets"] * 2


def test_a_method_that_pools_rows_of_several_places_is_refused_before_it_starts(make_problem, separate):
    setup = make_problem(CLIENTS)
    apart = separate(setup.silos, PLACES)
    pooling = [("pooled", {}), ("conditional", {"arm": "pooled"}), ("trees", {"arm": "pooled"})]
    for name, options in pooling:
        with pytest.raises(UserError, match="got rows of 2 places"):
            start_method(find_method(name, BUNDLED)(**options), replace(setup, silos=apart.listed))

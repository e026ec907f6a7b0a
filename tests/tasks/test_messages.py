"""What leaves a client is what the message types list, and no row fits in them."""

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from prefect import Task
from torch import Tensor

from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from silos.cohort import Cohort, Stack, open_stack
from tasks import (
    aggregate,
    by_class,
    client_stats,
    codebook_extend,
    evaluate,
    full_gradient,
    head_gradient,
    local_train,
    messages,
    pair,
    projection,
    regroup,
    split,
    uncertainty_check,
)
from tasks.evaluate import evaluate as evaluate_task
from tasks.messages import Scores, Update

# primes, so that no width of the network is one of them by chance
TRAIN = {"a": 23, "b": 29, "c": 19, "d": 17}
VALIDATION, TEST = 31, 37
ROW_COUNTS = {*TRAIN.values(), VALIDATION, TEST}

PER_CLIENT = {"rows", "loss", "norm", "choice", "words"}
PER_STATISTIC = {"ok", "gap"}
SUMS_OVER_ROWS = {"sums", "told", "numbers"}  # told by clients with ten rows or more: see test_client_stats.py
# what a client tells of its features where params say so: centres for a common book, points of a picture
FEATURES = {"Centres": {"centres", "weights"}, "Projected": {"tokens", "words"}}
WORDS = {
    str,
    int,
    float,
    tuple[str, ...],
    tuple[float, ...],
    tuple[int, ...],
    Mapping[str, str],
    Mapping[str, Mapping[str, str]],
}


def message_types() -> list[type]:
    own = [c for c in vars(messages).values() if isinstance(c, type) and c.__module__ == messages.__name__]
    return [c for c in own if dataclasses.is_dataclass(c)]


@pytest.mark.parametrize("message", message_types())
def test_no_message_type_can_hold_a_row(message):
    """A field is words, numbers, one number a client and statistic or set of models, a sum over rows, or weights."""
    for name, kind in typing.get_type_hints(message).items():
        if name in FEATURES.get(message.__name__, ()):
            continue
        if kind is Tensor:
            assert name in PER_CLIENT | PER_STATISTIC
        elif name in {*SUMS_OVER_ROWS, "each"}:
            assert kind == Mapping[str, Tensor]
        else:
            assert kind in WORDS, f"{message.__name__}.{name} is {kind}"
    assert message.__dataclass_params__.frozen


def test_the_servers_tasks_do_not_take_a_cohort():
    on_clients = (client_stats, codebook_extend, evaluate, full_gradient, head_gradient, local_train, projection)
    for module in (*on_clients, uncertainty_check, aggregate, by_class, pair, regroup, split):
        for step in (v for v in vars(module).values() if isinstance(v, Task)):
            kinds = set(typing.get_type_hints(step.fn).values())
            opens_rows = step.name in (
                "borrow_words",
                "client_stats",
                "codebook_extend",
                "evaluate",
                "full_gradient",
                "head_gradient",
                "local_train",
                "projection",
                "regroup",
                "tell_stats",
                "token_centres",
                "uncertainty_check",
            )
            assert (Cohort in kinds) == opens_rows, step.name
    assert list(inspect.signature(aggregate.aggregate.fn).parameters) == ["updates", "current"]


@pytest.fixture(params=[FedAvg, LocalOnly])
def sent(request, make_problem, make_round):
    """Everything that one round and one evaluation of a method sent, with the problem."""
    problem = make_problem(TRAIN, silos={"validation": VALIDATION, "test": TEST})
    page, round = request.param(), make_round(problem, stack=3)
    model = page.model(page.init(problem), problem)
    updates = round.train(local_train.local_train, model)
    scores = round.each(evaluate_task, model, training=problem.training, keep_outcomes=True)
    return problem, updates, scores


def test_no_tensor_that_was_sent_is_as_long_as_a_clients_rows(sent):
    _, updates, scores = sent
    for message in (*updates, *scores):
        for path, tensor in tensors(message):
            # sums of correct answers and the like may equal a count; only shapes betray rows
            assert not ROW_COUNTS & set(tensor.shape), path


def test_no_value_of_a_row_was_sent(sent):
    problem, updates, scores = sent
    round_stacks = {m.clients for m in updates}
    values = set()
    for clients in round_stacks:
        rows = open_stack(problem.silos, _stack(clients), "train")
        values |= set(np.unique(rows.x[rows.x != 0]).tolist())
    assert len(values) > 100
    for message in (*updates, *scores):
        for path, tensor in tensors(message):
            assert not values & set(tensor.double().ravel().tolist()), path


def test_personal_weights_never_leave(make_problem, make_round):
    problem = make_problem(TRAIN)
    page, round = LocalOnly(), make_round(problem, stack=3)
    state, _ = page.one_round(page.init(problem), round)
    updates = round.train(local_train.local_train, page.model(state, problem))
    for update in updates:
        assert update.sums == {}
        assert set(update.private) == {"weights"}
        for client, reference in update.private["weights"].items():
            digest, _, row = reference.partition("/")
            assert client in update.clients
            assert len(digest) == 32
            assert row.isdigit()
        numbers = [t for _, t in tensors(update)]
        assert sum(t.numel() for t in numbers) == 2 * len(update.clients)
    assert state.tensors == {}  # nor does the server hold them


def test_bytes_up_are_the_hand_count():
    sums = {"w": torch.zeros(3, 4, dtype=torch.float64), "b": torch.zeros(4, dtype=torch.float64)}
    update = Update(("a", "b"), torch.tensor([1, 2]), torch.zeros(2), sums)
    assert update.bytes_up == 2 * (16 + 1 + 1) * 4
    assert Update(("a",), torch.tensor([1]), torch.zeros(1), {}).bytes_up == 8


def test_a_rounds_traffic_is_the_hand_count(make_problem, play):
    numbers = 5 * 6 + 6 + 6 * 3 + 3
    problem = make_problem(TRAIN)
    for workers in (1, 2):
        tally = play(FedAvg(), problem, [1], workers=workers, stack=3).rounds[0].tally
        assert tally.bytes_up == 4 * 4 * (numbers + 2)
        assert tally.bytes_down == 4 * 4 * numbers
    few = play(FedAvg(), problem, [1], absent={1: ["a", "b"]}).rounds[0].tally
    assert few.bytes_down == 2 * 4 * numbers
    alone = play(LocalOnly(), problem, [1]).rounds[0].tally
    assert (alone.bytes_up, alone.bytes_down) == (4 * 8, 0)


def tensors(message: Update | Scores) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a message, however deep."""

    def walk(path, value):
        if isinstance(value, Tensor):
            yield path, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield from walk(f"{path}.{key}", inner)
        elif isinstance(value, tuple | list):
            for at, inner in enumerate(value):
                yield from walk(f"{path}.{at}", inner)
        else:
            assert isinstance(value, str | int | float), path

    for field in dataclasses.fields(message):
        yield from walk(field.name, getattr(message, field.name))


def _stack(clients):
    return Stack(tuple(clients), len(clients))

"""What leaves a client is what the message types list, and no row fits in them."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tasks
from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from models.client_model import Model
from models.diagnosis.client_summaries.client_summary import Layout
from models.diagnosis.client_summaries.model_predictions import Design
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import PairQuery
from models.diagnosis.fomichev_distances import Readings
from models.gaussians import natural
from models.metrics.client_metrics import CLIENT_METRICS
from models.networks.mlp import MLP
from models.networks.tree_ensemble import TreeEnsemble
from models.networks.wrappers.codebook_network import COUNT, OWN, QuantizedNetwork
from models.networks.wrappers.domain_generalisation import GradientMatching
from models.networks.wrappers.posterior_update import SiteTraining, Tilted
from models.prng import server_stream
from models.server_state import ClientStateRefs
from models.statistics.feature_vector import make
from models.training.engine import Privacy, SecureSums
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack, open_stack
from tasks import local_train, messages
from tasks.evaluate import OUTCOMES, ClientMetrics, evaluate
from tasks.execution.steps import ClientStep, step
from tasks.execution.task_runner import Broadcast, PlainRunner, cohort_calls
from tasks.messages.message_policy import FEW, LEAST_ROWS, Message, Numbers, numbers_of
from tasks.messages.round_messages import SummedMessage, Update, WeightedMessage
from tasks.messages.score_messages import Scores
from tasks.messages.statistics_messages import NoisyCounts, Refusal
from tasks.messages.sum_messages import SumMessage
from tasks.personal_layers import common_batchnorm_statistics
from tasks.privacy.secure_sums import SecureRound
from tasks.report_evidence import prior_shift_fit, report_correctness, report_descriptor, report_evidence

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

# primes, so that no width of the network is one of them by chance
TRAIN = {"a": 23, "b": 29, "c": 19, "d": 17}
VALIDATION, TEST = 31, 37
METRICS = ClientMetrics(
    tuple(metric for metric in CLIENT_METRICS.values() if metric.task == "classification"), CLIENT_METRICS["auc"]
)
ROW_COUNTS = {*TRAIN.values(), VALIDATION, TEST}

# how many different rows each client has, in every split
DIFFERENT = {"one": 1, "nine": LEAST_ROWS - 1, "echo": LEAST_ROWS - 1, "many": 120}
SPLITS = {"one": 1, "nine": 9, "echo": 23, "many": 95}  # of many ten of each class in either half


def message_types() -> list[type]:
    modules = [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(messages.__path__, "tasks.messages.")
    ]
    own = {
        c: None for module in modules for c in vars(module).values() if isinstance(c, type) and issubclass(c, Message)
    }
    return [kind for kind in own if kind not in {Message, SummedMessage, SumMessage, WeightedMessage}]


def steps(kind: type) -> dict[str, Any]:
    """Every step of this kind in the room."""
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(tasks.__path__, "tasks.")]
    return {v.name: v for module in modules for v in vars(module).values() if isinstance(v, kind)}


@pytest.mark.parametrize("message", message_types())
def test_every_field_with_numbers_says_how_many_rows_each_stands_for(message):
    """The rest are text, and how long a step took."""
    declared = numbers_of(message)
    assert all(isinstance(about, Numbers) for about in declared.values())
    assert all(about.least >= LEAST_ROWS for about in declared.values() if about.size == "several")


@dataclasses.dataclass(frozen=True)
class Unsaid(Message):
    means: Tensor


@dataclasses.dataclass(frozen=True)
class Rows(Message):
    means: Annotated[Tensor, Numbers("several", 1)]


@dataclasses.dataclass(frozen=True)
class Bare(Message):
    mean: float = 0.0


class Thawed(Message):
    """No dataclass of its own: what it adds would be nobody's field."""

    means: Tensor


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (Unsaid, "got no numbers in"),
        (Bare, "got no numbers in"),
        (Rows, r"Rows\.means: got numbers as large as a row, expected that they stand for at least 10 rows"),
        (Thawed, "frozen dataclass|got no numbers in"),
    ],
)
def test_a_message_that_could_tell_more_than_it_says_is_refused_where_its_step_is_made(message, match):
    def tell(cohort: Cohort) -> list[message]: ...

    tell.__annotations__ = {"cohort": Cohort, "return": list[message]}
    with pytest.raises(TypeError, match=match):
        step(tell)


def test_a_message_of_a_page_counts_its_bytes_and_what_the_clients_were_sent(make_problem, make_round):
    setup = make_problem(TRAIN)
    round = make_round(setup, stack=3)
    page = FedAvg()
    model = page.model(page.init(setup), setup)
    reported = round.map_clients(tell_one_number, model)
    assert sorted(client for message in reported for client in message.clients) == sorted(TRAIN)
    assert round.tally.bytes_up == 4 * len(TRAIN)
    assert round.tally.bytes_down == model.bytes_down * len(TRAIN)
    assert round.map_clients(tell_one_number, model, silos=setup.silos.select(())) == []
    for task, match in (
        (tell_no_message, "got Unsized from a client step"),
        (tell_nothing, "got nothing from a client step"),
    ):
        with pytest.raises(TypeError, match=match):
            round.map_clients(task, model)


@pytest.mark.parametrize("travels", [True, False])
def test_a_message_that_could_tell_more_than_it_says_does_not_leave_a_step_that_names_none(travels):
    @dataclasses.dataclass(frozen=True)
    class Silent(Unsaid):
        pass

    Silent.travels = travels

    @step
    def tell(cohort: Cohort):
        return [Silent(("a",), means=torch.zeros(1))]

    with pytest.raises(TypeError, match=r"Silent\.means: got no numbers in the annotation, expected"):
        tell.fn(None)


@dataclasses.dataclass(frozen=True)
class OneNumber(Message):
    number: Annotated[Tensor, FEW]


@step
def tell_one_number(cohort: Cohort, model: Model, private: ClientStore, device: str) -> list[OneNumber]:
    return [OneNumber(stack.clients, torch.zeros(len(stack.clients))) for stack in cohort.stacks]


@step
def tell_no_message(cohort: Cohort, model: Model, private: ClientStore, device: str) -> list:
    return [Unsized() for _ in cohort.stacks]


@step
def tell_nothing(cohort: Cohort, model: Model, private: ClientStore, device: str) -> list:
    return []


@dataclasses.dataclass
class Unsized:
    seconds: float = 0.0


@pytest.fixture
def answers(make_problem, make_round, tmp_path):
    """What every client's step of the room answers, one after another, where the rows of some clients are other ones."""
    count = iter(range(99))

    def ask(others: tuple[str, ...] = (), features: int = 5, more: int = 1) -> dict[str, list[Any]]:
        def rows_of(client, total):
            rng = np.random.default_rng([*client.encode(), client in others])
            x, y = rng.normal(size=(DIFFERENT[client], features)), rng.integers(0, 3, DIFFERENT[client])
            x[60:] += 2  # rows that the earlier version lacks
            return np.resize(x, (total, features)), np.resize(y, total)

        sizes = {client: rows * more for client, rows in SPLITS.items()}
        network = QuantizedNetwork(MLP(features, (), 3), words=2, room=3)
        silos = {"rows_of": rows_of, "validation": 20 * more, "test": 20 * more, "name": f"world{next(count)}"}
        setup = make_problem(sizes, network=network, silos=silos)
        common = make_problem(
            sizes, network=network, silos={**silos, "common": ["validation"], "name": f"c{next(count)}"}
        )
        of_common = _ask_of_common_rows(common, make_round(common, stack=3))
        private = ClientStore(str(tmp_path / f"stores-{features}" / "private"))  # of other owners
        # the first rows of each client
        few = {client: min(rows, 20 * more) for client, rows in sizes.items()}
        before = make_problem(few, network=network, silos={**silos, "name": f"before{next(count)}"}).silos
        return {**_ask_all(setup, before, make_round(setup, stack=3, private=private), features), **of_common}

    return ask


def _ask_of_common_rows(setup, round) -> dict[str, list[Any]]:
    network, clients, training = setup.network.inner, setup.silos.clients, setup.training
    model = Model(network, network.init(server_stream(0, 0, "init")), clients=clients)
    of_law = partial(prior_shift_fit, places=[0, 3, 4])
    axes = torch.eye(network.inputs, dtype=torch.float64)[:, :2]
    described = partial(report_descriptor, axes=axes, classes=network.outputs)
    return {
        "regroup by descriptor": round.map_clients(report_evidence, model, training=training, evidence=described),
        "regroup by rows": round.map_clients(report_evidence, model, training=training, evidence=report_correctness),
        "regroup by law": round.map_clients(report_evidence, model, training=training, evidence=of_law),
        "common_batchnorm_statistics": round.map_clients(
            common_batchnorm_statistics, model, training=training, seed=0, round=1
        ),
    }


def _ask_all(setup, before, round, features) -> dict[str, list[Any]]:
    """Step to its messages."""
    silos, network = setup.silos, setup.network
    clients, weights = silos.clients, network.init(server_stream(0, 0, "init"))
    refs = round.private.save("own", clients, {OWN: np.ones((len(clients), 3, features), np.float32)})
    personal = ClientStateRefs("own", refs, {OWN: torch.zeros(3, features)})
    words = Model(network, weights, personal, {COUNT: torch.ones(len(clients), dtype=torch.int64)}, clients)
    inner = {name: w for name, w in weights.items() if name.startswith("dense")}
    plain, offered = (
        Model(network.inner, w, clients=clients) for w in (inner, {n: w[None, None] for n, w in inner.items()})
    )
    target = {name: torch.zeros(len(clients), *w.shape) for name, w in inner.items()}
    zeros = {name: torch.zeros_like(w) for name, w in inner.items()}
    matched = Model(GradientMatching(network.inner, 0.1), inner, context=target, clients=clients)
    stored = {"correct": np.ones((len(clients), 99), np.uint8), "predicted": np.ones((len(clients), 99), np.int32)}
    outcome = round.private.save(OUTCOMES, clients, stored, "outcomes")
    stored = {n: np.stack([w.numpy()] * len(clients)) for n, w in inner.items()}
    alone, sent, kept_sites = (
        Model(
            network.inner, {}, ClientStateRefs(kind, round.private.save(kind, clients, stored, kind)), clients=clients
        )
        for kind in ("weights", "sendable", "sites")
    )
    law = {n: natural(torch.zeros_like(w), torch.ones_like(w)).named(n) for n, w in inner.items()}
    known = {name: t for parts in law.values() for name, t in parts.items()}
    sites = {name: torch.zeros(len(clients), *t.shape, dtype=t.dtype) for name, t in known.items()}
    tilted = Model(Tilted(network.inner, bias="gaussian"), known, context=sites, clients=clients)
    visiting = {"how": SiteTraining(1e-3, 0.01, upload=0.5), "shares": dict.fromkeys(clients, 0.1)}
    kept = (round.private, outcome)
    when = {"training": setup.training, "seed": 0, "round": 1}
    asked: dict[str, tuple[Any, dict[str, Any]]] = {
        "borrow_words": (
            words,
            {"lent": Broadcast(personal), "words": Broadcast(dict.fromkeys(clients, 1)), "room": 4},
        ),
        "client_stats": (plain, {"statistics": tuple(make({"kind": kind}) for kind in ("mean", "fingerprint"))}),
        "codebook_extend": (words, {"extend": clients, "words": 4, "room": 7, **when}),
        "codebook_replace": (words, {"extend": clients, "words": 3, "room": 3, **when}),
        "ensemble_check": (plain, {"training": setup.training, "members": [(plain, round.private)]}),
        "evaluate": (plain, {"training": setup.training, "keep_outcomes": True, "client_metrics": METRICS}),
        "full_gradient": (plain, when),
        "scaffold_train": (
            replace(plain, context=target),
            {**when, "variates": ClientStateRefs("variates", {}, zeros), "variate": "difference", "validate": True},
        ),
        "dynamic_train": (
            plain,
            {**when, "duals": ClientStateRefs("duals", {}, zeros), "alpha": 0.1, "validate": True},
        ),
        "head_then_body": (
            Model(
                network.inner,
                {"dense0.weight": inner["dense0.weight"]},
                ClientStateRefs("heads", {}, {"dense0.bias": inner["dense0.bias"]}),
                clients=clients,
            ),
            {**when, "head_epochs": 1, "each": True, "validate": True},
        ),
        "train_trees": (
            Model(TreeEnsemble(features, 3, 2, 3, 2), {}, clients=clients),
            {"training": setup.training, "rate": 0.1, "least_rows": 2},
        ),
        "head_gradient": (matched, {"training": setup.training}),
        "local_train": (plain, {**when, "each": True, "validate": True}),
        "local_batchnorm_statistics": (alone, when),
        "pooled_train": (plain, {**when, "context": {}, "silos": silos.pool(), "validate": True}),
        "projection": (words, {"training": setup.training, "axes": torch.eye(features)[:, :2], "seed": 0}),
        "regroup": (offered, {"training": setup.training}),
        "send_weights": (sent, {}),
        "check_scale": (plain, {}),
        "report_moments": (plain, {"inputs": True, "targets": True}),
        "report_stats": (plain, {"names": ("class_counts", "mean", "variance", "eigenvalues")}),
        "report_centroids": (words, {"words": 8, **when}),
        "uncertainty_check": (words, {**when, "passes": 0}),
        "update_site": (tilted, {**when, **visiting}),
        "remove_sites": (replace(plain, shared={}, context=kept_sites.personal), {}),
    }
    reported = {
        name: round.map_clients(task, asked[name][0], **asked[name][1])
        for name, task in steps(ClientStep).items()
        if name in asked
    }
    beside = {
        "mean_outcomes": ([kept], [kept]),
        "pair_outcomes": ([kept], [kept]),
        "pair_common_rows": ([kept], [kept]),
        "score_by_class": (kept,),
        "count_predictions": ([[kept]],),
        "score_prior_shift": (kept,),
    }
    for name, own in beside.items():
        reported[name] = _ask(round, silos, name, *own)
    reported["evaluate_constant"] = _ask(round, silos, "evaluate_constant", 1.0, round.private)
    reported["sum_targets"] = _ask(round, silos, "sum_targets", round.private)
    private = replace(setup.training, privacy=Privacy(1.0, 30.0, 20.0, 5))
    reported["local_train with privacy"] = round.map_clients(
        steps(ClientStep)["local_train"], plain, **{**when, "training": private}
    )
    reported |= _sum_securely(round, silos, plain, private)
    reported["report_privacy_cost"] = _ask(round, silos, "report_privacy_cost", private, round.private)
    for name, asked_shift in {"report_summary": SHIFT, "report_summary with noise": replace(SHIFT, rho=1.0)}.items():
        options = {"private": round.private, "query": replace(asked_shift, layout=_layout(features))}
        reported[name] = _ask(round, silos, "report_summary", **options)
    less = {**options, "query": replace(options["query"], rho=0.7)}
    reported["report_summary with no budget"] = _ask(round, silos, "report_summary", **less)
    pairs = PairQuery(replace(SHIFT, layout=_layout(features)), tuple(range(features)))
    reported["report_feature_pairs"] = _ask(round, silos, "report_feature_pairs", round.private, pairs)
    read = {"verdict": "guarded", "readings": Readings()}
    reported["report_new_rows"] = _ask(round, silos, "report_new_rows", round.private, before, pairs.query, **read)
    reported |= _ask_for_second_look(round, silos, options["query"])
    assert {name for name in reported if " " not in name} == steps(ClientStep).keys() - {"common_batchnorm_statistics"}
    return reported


@dataclass(frozen=True)
class _Recorder(PlainRunner):
    """Keeps what each step returned."""

    reported: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def map_cohorts(self, task, calls):
        answers = super().map_cohorts(task, calls)
        self.reported[task.name] = [message for cohort in answers for message in cohort]
        return answers


def _sum_securely(round, silos, model, training) -> dict[str, list[Any]]:
    recorder, secure = _Recorder(round.runner.workers), SecureSums(least=0, colluders=1)
    training = replace(training, epochs=1, privacy=replace(training.privacy, secure=secure))
    SecureRound(recorder, silos, model, training, secure, round.private, 3, "cpu", round.tally).train("sum")
    return recorder.reported


def _ask_for_second_look(round, silos, question) -> dict[str, list[Any]]:
    """By another's models that are sure of a class whatever the row, so that no rounding, which is secret, is seen."""
    features = len(question.layout.names)
    weights = np.zeros((2, 3, features + 1))
    weights[:, 0, -1] = 1e4
    design = Design(replace(question, rho=0.0), np.zeros(features), np.ones(features))
    clients = silos.clients
    others = {client: {clients[at - 1]: weights} for at, client in enumerate(clients)}
    asked = {"report_models": {}, "report_predictions": {"models": others}}
    return {name: _ask(round, silos, name, round.private, design, **also) for name, also in asked.items()}


def _ask(round, silos, name, *args, **options) -> list[Any]:
    """Run a step apart from the round's own, and return its messages."""
    step = steps(ClientStep)[name]
    cohorts = round.runner.map_cohorts(step, cohort_calls(step, silos, 3, round.runner.workers, *args, **options))
    return [message for cohort in cohorts for message in cohort]


def _layout(features: int) -> Layout:
    names = tuple(f"x{at}" for at in range(features))
    return Layout(names, (None,) * features, np.full(features, -4.0), np.full(features, 4.0), 8, 3)


SHIFT = Query("schema", _layout(5))


def test_every_record_is_what_some_clients_step_answers(answers):
    assert {type(message) for reported in answers().values() for message in reported} == set(message_types())


def test_of_a_client_with_few_different_rows_nothing_as_large_as_a_row_leaves(answers):
    """Copies of a row are one row: with other rows, such a client's answers are the same to the bit."""
    usual, others, control = (large(answers(clients)) for clients in ((), ("one", "nine", "echo"), ("many",)))
    assert usual == others
    assert {name for name in usual if usual[name] != control[name]} == {
        name for name, fields in usual.items() if fields
    }
    assert len([name for name, fields in usual.items() if fields]) >= 5


def test_what_is_few_numbers_of_a_client_is_so_whatever_its_rows(answers):
    small, large = answers(), answers(features=7, more=2)
    for name, reported in small.items():
        # A refusal has no numbers. The hash of a client's version draws which of its further copies are training rows. It
        # depends on a secret that each store makes, so a client with copies refuses in one run, and is silent in another.
        answered = [[m for m in of if not isinstance(m, Refusal)] for of in (reported, large[name])]
        for message, other in zip(*answered, strict=True):
            for field in [f for f, about in numbers_of(type(message)).items() if about.size == "few"]:
                shapes = [[a.shape for _, a in arrays(getattr(m, field))] for m in (message, other)]
                assert shapes[0] == shapes[1], f"{name}: {type(message).__name__}.{field}"


@pytest.fixture(params=[FedAvg, LocalOnly])
def sent(request, make_problem, make_round):
    """Everything that one round and one evaluation of a method sent, with the problem."""
    setup = make_problem(TRAIN, silos={"validation": VALIDATION, "test": TEST})
    page, round = request.param(), make_round(setup, stack=3)
    model = page.model(page.init(setup), setup)
    updates = round.train(local_train.local_train, model)
    scores = round.map_clients(evaluate, model, training=setup.training, keep_outcomes=True, client_metrics=METRICS)
    return setup, updates, scores


def test_no_tensor_that_was_sent_is_as_long_as_a_clients_rows(sent):
    _, updates, scores = sent
    for message in (*updates, *scores):
        for path, tensor in tensors(message):
            # sums of correct answers and the like may equal a count; only shapes betray rows
            assert not ROW_COUNTS & set(tensor.shape), path


def test_no_value_of_a_row_was_sent(sent):
    setup, updates, scores = sent
    round_stacks = {m.clients for m in updates}
    values = set()
    for clients in round_stacks:
        rows = open_stack(setup.silos, _stack(clients), "train")
        values |= set(np.unique(rows.x[rows.x != 0]).tolist())
    assert len(values) > 100
    for message in (*updates, *scores):
        for path, tensor in tensors(message):
            assert not values & set(tensor.double().ravel().tolist()), path


def test_personal_weights_never_leave(make_problem, make_round):
    setup = make_problem(TRAIN)
    page, round = LocalOnly(), make_round(setup, stack=3)
    state, _ = page.run_round(page.init(setup), round)
    updates = round.train(local_train.local_train, page.model(state, setup))
    for update in updates:
        assert update.sums == {}
        assert set(update.private) == {"weights"}
        for client, reference in update.private["weights"].items():
            digest, _, row = reference.partition("/")
            assert client in update.clients
            assert len(digest.removeprefix("k")) == 32
            assert row.isdigit()
        numbers = [t for _, t in tensors(update)]
        assert sum(t.numel() for t in numbers) == 2 * len(update.clients)
    assert state.tensors == {}  # nor does the server hold them


def test_bytes_up_are_the_hand_count():
    sums = {"w": torch.zeros(3, 4, dtype=torch.float64), "b": torch.zeros(4, dtype=torch.float64)}
    update = Update(("a", "b"), torch.tensor([1, 2]), sums, torch.zeros(2))
    assert update.bytes_up == 2 * (16 + 1 + 1) * 4
    assert Update(("a",), torch.tensor([1]), {}, torch.zeros(1)).bytes_up == 8
    assert replace(update, validation={"a": (1.0, 0.5), "b": (2.0, 3.0)}).bytes_up == update.bytes_up + 2 * 2 * 4


def test_a_rounds_traffic_is_the_hand_count(make_problem, play):
    numbers = 5 * 6 + 6 + 6 * 3 + 3
    setup = make_problem(TRAIN)
    for workers in (1, 2):
        tally = play(FedAvg(), setup, [1], workers=workers, stack=3).rounds[0].tally
        assert tally.bytes_up == 4 * 4 * (numbers + 2)
        assert tally.bytes_down == 4 * 4 * numbers
    few = play(FedAvg(), setup, [1], absent={1: ["a", "b"]}).rounds[0].tally
    assert few.bytes_down == 2 * 4 * numbers
    alone = play(LocalOnly(), setup, [1]).rounds[0].tally
    assert (alone.bytes_up, alone.bytes_down) == (4 * 8, 0)


def tensors(message: Update | Scores) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a message, however deep."""
    for field in dataclasses.fields(message):
        yield from arrays(getattr(message, field.name), field.name)


def large(answers: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Step to what its messages have that is as large as a row, however deep."""
    return {
        name: [
            (type(message).__name__, field, path, array.numpy(force=True).tobytes())  # as lists no NaN equals another
            for message in reported
            if not isinstance(message, NoisyCounts)  # whose noise stands in for rows, and is each private folder's own
            for field, about in numbers_of(type(message)).items()
            if about.size == "several"
            for path, array in arrays(getattr(message, field))
        ]
        for name, reported in answers.items()
    }


def arrays(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor or array in a value, as a tensor."""
    if isinstance(value, Tensor | np.ndarray):
        yield path, torch.as_tensor(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from arrays(inner, f"{path}.{key}")
    elif isinstance(value, tuple | list):
        for at, inner in enumerate(value):
            yield from arrays(inner, f"{path}.{at}")
    else:
        assert value is None or isinstance(value, str | int | float), path


def _stack(clients):
    return Stack(tuple(clients), len(clients))

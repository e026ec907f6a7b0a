"""Clients describe their training rows, keep the description, and tell of it only what they are asked for by name."""

import logging
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from models.client_model import Model
from models.server_state import ClientStateRefs
from models.statistics.feature_vector import compute, make
from silos.client_store import ClientStore
from silos.cohort import Silos, Stack
from silos.data_params import DataParams
from silos.errors import UserError
from silos.sources.synthetic import coefficients
from silos.storage.partition_store import open_client, write
from tasks.client_stats import STATISTICS, PrivateStatistics, client_stats, report_stats
from tasks.execution.load_client_data import load_weights
from tasks.messages.message_policy import LEAST_ROWS
from tasks.messages.statistics_messages import StatsKept, StatsMessage

TRAIN = {"a": 23, "b": 29, "c": 19, "d": 17, "one": 1, "few": 4}
ASKED = tuple(
    make(spec)
    for spec in (
        {"kind": "mean"},
        {"kind": "covariance_xy"},
        {"kind": "loadings", "components": 2},
        {"kind": "fingerprint"},
        {"kind": "class_frequencies"},
    )
)


@pytest.fixture
def describe(make_problem, make_round, tmp_path):
    """Runs the task on all clients of a problem; what it answers, and the store."""

    def run(setup=None, workers=1, stack=3, store="own", clients=None, task=client_stats, **options):
        setup = setup or make_problem(TRAIN)
        private = ClientStore(str(tmp_path / store))
        round = make_round(setup, workers=workers, stack=stack, private=private, clients=clients)
        options = options or {"statistics": ASKED}
        page = FedAvg()
        return setup, private, round.map_clients(task, page.model(page.init(setup), setup), **options)

    return run


def test_each_client_keeps_the_statistics_of_its_own_training_rows(describe):
    setup, private, answers = describe()
    refs = refs_of(answers)
    assert sorted(refs) == sorted(TRAIN)
    for client in TRAIN:
        kept = private.load(STATISTICS, refs, client)
        assert set(kept) == {STATISTICS}
        assert kept[STATISTICS].dtype == np.float32
        np.testing.assert_array_equal(kept[STATISTICS], expected(setup, client).vector.float().numpy())


def test_other_rows_than_those_to_train_on_change_nothing(describe, make_problem):
    """Two sets of silos with the same training rows and other validation and test rows."""

    def rows_of(change):
        def rows(client, total):
            rng = np.random.default_rng(list(client.encode()))
            x, y = rng.normal(size=(total, 5)), rng.integers(0, 3, total)
            x[-7:] += change
            y[-7:] = (y[-7:] + change) % 3
            return x, y

        return rows

    found = []
    for change in (0, 1):
        setup = make_problem(TRAIN, silos={"rows_of": rows_of(change), "name": f"shift{change}"})
        _, private, answers = describe(setup, store=f"store{change}")
        found.append((refs_of(answers), private))
    assert found[0][0] == found[1][0]


@pytest.mark.parametrize(("workers", "stack"), [(1, 1), (1, 6), (2, 2), (3, 1)])
def test_stacks_and_dealing_do_not_matter(describe, workers, stack):
    _, store, usual = describe()
    _, other_store, other = describe(workers=workers, stack=stack, store="other")
    for client in TRAIN:
        one = store.load(STATISTICS, refs_of(usual), client)[STATISTICS]
        np.testing.assert_array_equal(other_store.load(STATISTICS, refs_of(other), client)[STATISTICS], one)
        for name in ("norm", "ok", "gap", "agreement"):
            torch.testing.assert_close(
                of_client(other, client, name), of_client(usual, client, name), rtol=0, atol=0, equal_nan=True
            )


def test_the_other_clients_do_not_matter(describe):
    _, store, usual = describe()
    _, other_store, other = describe(clients=["b", "one"], store="other")
    for client in ("b", "one"):
        one = store.load(STATISTICS, refs_of(usual), client)[STATISTICS]
        np.testing.assert_array_equal(other_store.load(STATISTICS, refs_of(other), client)[STATISTICS], one)


def test_running_it_twice_stores_one_file_a_stack(describe, tmp_path):
    _, _, first = describe()
    _, _, second = describe()
    assert refs_of(first) == refs_of(second)
    assert len(list((tmp_path / "own" / STATISTICS).iterdir())) == 2


def test_what_is_kept_opens_as_a_models_context(describe):
    setup, private, answers = describe()
    model = Model(setup.network, {}, context=ClientStateRefs(STATISTICS, refs_of(answers)), clients=setup.silos.clients)
    _, context = load_weights(model, Stack(("c", "one"), 3), private, "cpu")
    wanted = [expected(setup, client).vector.float() for client in ("c", "one", "c")]
    assert torch.equal(context[STATISTICS], torch.stack(wanted))


def test_the_server_learns_hashes_norms_flags_gaps_and_agreements(describe):
    setup, _, answers = describe()
    for answer in answers:
        assert isinstance(answer, StatsKept)
        for at, client in enumerate(answer.clients):
            mine = expected(setup, client)
            assert float(answer.norm[at]) == pytest.approx(float(mine.vector.norm()))
            assert tuple(answer.ok[at].tolist()) == mine.ok
            for told, known in ((answer.gap[at], mine.gap), (answer.agreement[at], mine.agreement)):
                assert torch.isnan(told).tolist() == [n is None for n in known]
                assert [float(n) for n in told if not n.isnan()] == [n for n in known if n is not None]
    assert of_client(answers, "one", "ok").tolist() == [True, False, False, False, True]
    assert of_client(answers, "a", "ok").all()


def test_halves_of_fewer_than_ten_rows_each_are_not_compared(describe):
    """A number that leaves a client stands for ten rows or more."""
    _, _, answers = describe(statistics=(make({"kind": "loadings"}),))
    for client, rows in TRAIN.items():
        told = of_client(answers, client, "agreement")
        assert bool(told.isnan().all()) == (rows < 2 * LEAST_ROWS), client


def test_of_a_single_number_no_norm_is_told(describe, make_problem):
    def rows_of(client, rows):
        return np.eye(rows, 5), np.arange(rows) % 2

    setup = make_problem(TRAIN, silos={"rows_of": rows_of, "name": "two"})
    _, _, answers = describe(setup, statistics=(make({"kind": "label_mean"}),))
    assert all(answer.norm.isnan().all() for answer in answers)


def test_nothing_of_what_is_kept_is_in_any_answer_pickle_or_log_line(describe, caplog):
    """Every number that the vectors hold is searched for as bytes and as text, in both precisions."""
    caplog.set_level(logging.DEBUG)
    setup, private, answers = describe()
    text = f"{answers} {[asdict(a, dict_factory=in_full) for a in answers]} {caplog.text}"
    sent = pickle.dumps(answers) + text.encode()
    for client in TRAIN:
        single = private.load(STATISTICS, refs_of(answers), client)[STATISTICS]
        double = expected(setup, client).vector.numpy()
        telling = [i for i in range(len(single)) if len(repr(double[i].item())) > 12]
        assert len(telling) > 4
        for i in telling:
            traces = [t for v in (single[i], double[i]) for t in (v.tobytes(), digits(v))]
            assert not [trace for trace in traces if trace in sent]
    norm = answers[0].norm[0].numpy()  # the search does find what is sent
    assert norm.tobytes() in sent
    assert digits(norm) in sent


def test_private_statistics_cannot_be_pickled_and_say_nothing_of_themselves():
    own = PrivateStatistics(np.full((2, 3), 0.123456, np.float32))
    with pytest.raises(TypeError, match="do not leave their client"):
        pickle.dumps(own)
    assert repr(own) == str(own) == "PrivateStatistics of 2 clients"


def test_too_few_rows_are_refused_by_client_statistic_and_number_if_asked(describe):
    with pytest.raises(
        UserError, match=r"client one of .* has 1 training row, expected 2 for the statistic covariance_xy\. "
    ):
        describe(statistics=ASKED, few_rows="refuse")
    with pytest.raises(
        UserError, match=r"client few of .* has 4 training rows, expected 7 for the statistic least_squares\. "
    ):
        describe(statistics=(make({"kind": "least_squares"}),), few_rows="refuse", clients=["a", "few"])
    describe(statistics=ASKED, few_rows="refuse", clients=["a", "few"])


def test_a_statistic_that_is_no_number_names_the_client(describe, make_problem):
    def rows_of(client, rows):
        x = np.random.default_rng(0).normal(size=(rows, 5))
        return x * (1e30 if client == "c" else 1), np.arange(rows) % 3

    setup = make_problem(TRAIN, silos={"rows_of": rows_of, "name": "large"})
    with pytest.raises(UserError, match="large: the statistic variance: got NaN, infinity or a number too large"):
        describe(setup, statistics=(make({"kind": "variance"}),))


def test_a_regression_has_statistics_too(describe, make_problem, tmp_path):
    spec = {"kind": "synthetic", "task": "linear", "clusters": 2, "clients_per_cluster": 2, "features": 5, "noise": 0}
    split = {"validation": 0.0, "test": 0.0}
    data = DataParams.model_validate(
        {"name": "line", "seed": 0, "source": spec, "scheme": [{"kind": "column", "column": "client"}], "split": split}
    )
    write(tmp_path / "line", data, tmp_path)
    setup = replace(make_problem(TRAIN), silos=Silos.open(tmp_path / "line", "line"))
    _, private, answers = describe(setup, statistics=(make({"kind": "least_squares"}),))
    thetas = coefficients(data.source, 0)
    for at, client in enumerate(setup.silos.clients):
        kept = private.load(STATISTICS, refs_of(answers), client)[STATISTICS]
        np.testing.assert_allclose(kept, [*thetas[at // 2], 0], atol=1e-4)
    with pytest.raises(UserError, match="line: class_means: got a regression, expected classes, of which this"):
        describe(setup, statistics=(make({"kind": "class_means"}),))


def test_clients_tell_what_they_are_asked_for_by_name(describe):
    names = ("class_counts", "mean", "variance", "eigenvalues")
    setup, _, messages = describe(task=report_stats, names=names, clients=["a", "b", "c"])
    for message in messages:
        assert isinstance(message, StatsMessage)
        assert set(message.statistics) == set(names)
        for at, client in enumerate(message.clients):
            x, y = own_rows(setup, client)
            assert message.rows[at] == TRAIN[client]
            assert message.statistics["class_counts"][at].tolist() == np.bincount(y, minlength=3).tolist()
            np.testing.assert_allclose(message.statistics["mean"][at], x.mean(0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(message.statistics["variance"][at], x.var(0, ddof=1), rtol=1e-5)
            joint = np.cov(np.column_stack([x, np.eye(3)[y]]).T)
            np.testing.assert_allclose(
                message.statistics["eigenvalues"][at, :8], np.linalg.eigvalsh(joint)[::-1], atol=1e-5
            )
    assert messages[0].bytes_up == 3 * 4 * (1 + 3 + 5 + 5 + 32)
    (mean,) = describe(task=report_stats, names=("mean",), clients=["a"])[2]
    assert set(mean.statistics) == {"mean"}


def test_clients_with_few_rows_tell_none_of_it(describe):
    """The mean of one row is that row."""
    _, _, messages = describe(task=report_stats, names=("class_counts", "mean"), stack=6)
    (message,) = messages
    assert sorted(message.silent) == ["few", "one"]
    for client, *parts in zip(message.clients, *message.statistics.values(), strict=True):
        assert any(part.any() for part in parts) == (TRAIN[client] >= LEAST_ROWS)
    assert message.bytes_up == 4 * (6 + 4 * (3 + 5))


@pytest.mark.parametrize("names", [(), ("mean", "loadings")])
def test_what_cannot_be_told_is_refused(describe, names):
    with pytest.raises(ValueError, match="expected some of class_counts, mean, variance, eigenvalues"):
        describe(task=report_stats, names=names)


def test_what_is_told_counts_as_traffic_and_what_is_kept_does_not(make_problem, make_round):
    setup, page = make_problem(TRAIN), FedAvg()
    round = make_round(setup)
    model = page.model(page.init(setup), setup)
    round.map_clients(client_stats, model, statistics=ASKED)
    assert (round.tally.bytes_up, round.tally.bytes_down) == (0, 0)
    told = round.map_clients(report_stats, model, names=("mean",))
    assert round.tally.bytes_up == sum(m.bytes_up for m in told) == 4 * (6 + 4 * 5)
    assert set(round.tally.seconds) == {"client_stats", "report_stats"}


def refs_of(answers):
    return {client: ref for answer in answers for client, ref in answer.refs.items()}


def of_client(answers, client, name):
    (answer,) = [a for a in answers if client in a.clients]
    return getattr(answer, name)[answer.clients.index(client)]


def own_rows(setup, client):
    return open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), "train")


def expected(setup, client):
    x, y = own_rows(setup, client)
    return compute(ASKED, torch.from_numpy(x.copy()), torch.from_numpy(y.copy()), 3)


def in_full(fields):
    """A record's fields with every digit of its tensors."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in fields}


def digits(value):
    """The first digits of a number as a journal would show them."""
    return repr(value.item())[:10].encode()


def test_the_least_number_of_rows_is_enough_and_one_less_is_not(describe, make_problem):
    setup = make_problem({"enough": LEAST_ROWS, "short": LEAST_ROWS - 1})
    _, _, (message,) = describe(setup, task=report_stats, names=("mean",))
    assert message.silent == ("short",)
    spoken = dict(zip(message.clients, message.statistics["mean"].any(1).tolist(), strict=True))
    assert spoken == {"enough": True, "short": False}

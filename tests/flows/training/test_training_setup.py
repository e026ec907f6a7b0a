"""What params say of model and clients is the network and the clients that methods are given."""

import re
from dataclasses import replace

import numpy as np
import pytest

from flows.methods.client_sampler import BySize, LossBasedSampler, Uniform
from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.training.training_setup import client_sampler, training_setup
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.training.engine import SecureSums
from models.training.objectives import Focal
from silos.errors import UserError

COLUMN = "data.scheme=[{kind: column, column: client}]"


@pytest.fixture
def opened(project):
    return lambda *overrides: Project.open(list(overrides), project, derived=True)


def test_one_member_is_the_network_itself_and_more_are_an_ensemble(opened):
    network = MLP(64, (8,), 10)
    for override, expected in (
        ([], network),
        (["model.members=1"], network),
        (["model.members=3"], DeepEnsemble(network, 3)),
    ):
        setup = training_setup(opened(*override), 0)
        assert setup.network == expected
        assert setup.training.engine == "batched"


def test_focal_loss_has_a_number_for_each_class_or_one_for_all(opened):
    def objective(alpha):
        return training_setup(
            opened(f"training.objective={{kind: focal, gamma: 1, alpha: {alpha}}}"), 0
        ).training.objective

    assert objective(0.25) == Focal(1.0, 0.25)
    assert objective([1] * 9 + [2]) == Focal(1.0, (1.0,) * 9 + (2.0,))
    for wrong in (9, 11):
        said = rf"training\.objective\.alpha: got {wrong} numbers, expected 1 or 10, one for each class"
        with pytest.raises(UserError, match=said):
            objective([1] * wrong)


def test_of_one_class_there_is_no_focal_loss(opened, project):
    np.savez(project / "one.npz", x=np.arange(24.0).reshape(12, 2), y=[0] * 12, client=["a", "b"] * 6)
    source = ["data.name=one", "data.source={kind: npz, path: one.npz}", COLUMN]
    with pytest.raises(
        UserError, match=r"objective\.kind: got focal, expected cross_entropy, since data/one has one class"
    ):
        training_setup(opened(*source, "training.objective={kind: focal}"), 0)
    assert training_setup(opened(*source), 0).silos.clients == ("a", "b")


def test_clients_may_join_later(opened):
    project = opened("clients.join={c05: 3, c00: 2}")
    join = project.params.clients.join
    there = [
        set(Uniform(1.0, 0.0, join).sample(training_setup(project, 0), number, {}).clients) for number in (1, 2, 3)
    ]
    assert [len(clients) for clients in there] == [4, 5, 6]
    assert there[2] - there[1] == {"c05"}


@pytest.mark.parametrize(
    ("join", "said"),
    [
        (
            "{c5: 3}",
            r"clients\.join: got '?c5'?, expected a client of data/digits that takes part in training\. Did you mean c05\?",
        ),
        ("{oslo: 3}", r"clients\.join: got '?oslo'?, .*\. They are c00, c01, .*, c05\. Correct the name"),
        ("{c05: 4}", r"clients\.join\.c05: got 4, expected at most training\.rounds \(3\), or the client never"),
        (str({f"c0{i}": 2 for i in range(6)}), r"clients\.join: got no client in round 1"),
    ],
)
def test_who_joins_must_be_there_and_somebody_must_start(join, said, opened):
    with pytest.raises(UserError, match=said):
        training_setup(opened(f"clients.join={join}"), 0)


def test_clients_may_leave_before_a_round_and_are_not_called_from_it_on(opened):
    project = opened("clients.leave={c05: 3, c00: 2}", "clients.join={c00: 1, c01: 2}")
    training_setup(project, 0)
    calls = [
        client_sampler(project.params.clients).sample(training_setup(project, 0), number, {}) for number in (1, 2, 3)
    ]
    every = {f"c0{i}" for i in range(6)}
    assert [set(call.clients) for call in calls] == [every - {"c01"}, every - {"c00"}, every - {"c00", "c05"}]
    assert [call.leaving for call in calls] == [(), ("c00",), ("c05",)]


def test_a_client_that_never_takes_part_trains_alone_with_local_only(opened):
    project = opened("clients.leave={c05: 1, c00: 2}")
    setup, every = training_setup(project, 0), {f"c0{i}" for i in range(6)}
    alone, shared = (
        [
            set(
                method_of(project.params, name)
                .sampler(client_sampler(project.params.clients))
                .sample(setup, number, {})
                .clients
            )
            for number in (1, 2)
        ]
        for name in ("local_only", "fedavg")
    )
    assert alone == [every, every - {"c00"}]
    assert shared == [every - {"c05"}, every - {"c00", "c05"}]


ALL = {f"c0{i}": 3 for i in range(6)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "join", "said"),
    [
        ("{c5: 3}", "{}", r"clients\.leave: got '?c5'?, .*\. Did you mean c05\?$"),
        (
            "{c05: 4}",
            "{}",
            r"clients\.leave\.c05: got 4, expected at most training\.rounds \(3\), or the client never",
        ),
        ("{c05: 1}", "{c05: 1}", r"clients\.leave\.c05: got 1, expected a round after 1, in which it joins"),
        ("{c05: 2}", "{c05: 2}", r"clients\.leave\.c05: got 2, expected a round after 2, in which it joins"),
        (
            str(ALL),
            "{}",
            r"clients\.leave: got no client left in round 3, expected at least one",
        ),
        (
            str({**ALL, "c00": 2, "c01": 2}),
            "{}",
            r"clients\.leave: got no client left in round 3, expected at least one",
        ),
        (
            str({f"c0{i}": 2 for i in range(5)}),
            "{c05: 3}",
            r"clients\.leave: got no client left in round 2, expected at least one",
        ),
        ("{c05: 0}", "{}", r"clients\.leave\.c05: got 0, expected at least 1"),
    ],
)
def test_who_leaves_must_have_been_there_and_somebody_must_remain(leave, join, said, opened):
    with pytest.raises(UserError, match=said):
        training_setup(opened(f"clients.leave={leave}", f"clients.join={join}"), 0)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("{kind: uniform}", Uniform(0.5, 0.1, {"c05": 2}, {"c04": 3})),
        ("{kind: by_size}", BySize(0.5, 0.1, {"c05": 2}, {"c04": 3})),
        ("{kind: improving}", LossBasedSampler(0.5, 0.1, {"c05": 2}, {"c04": 3}, focus=0.8, improvement="last_seen")),
        (
            "{kind: improving, focus: 1, improvement: within_round}",
            LossBasedSampler(0.5, 0.1, {"c05": 2}, {"c04": 3}, focus=1.0, improvement="within_round"),
        ),
    ],
)
def test_who_is_called_is_as_params_say_and_uniform_where_they_say_nothing(sampling, expected, opened):
    who = ["clients.fraction=0.5", "clients.dropout=0.1", "clients.join={c05: 2}", "clients.leave={c04: 3}"]
    project = opened(*who, f"clients.sampling={sampling}")
    sampler = client_sampler(project.params.clients)
    assert sampler == expected
    assert type(sampler) is type(expected)
    assert client_sampler(opened("clients={}").params.clients) == Uniform()


@pytest.mark.parametrize("rows", ["own", "common"])
def test_nobody_improves_without_validation_rows(rows, opened):
    """Six clients have some 300 rows each, and 0.03 of them are 9; of common ones there are enough."""
    split = f"data.split={{validation: 0.03, test: 0.2, validation_rows: {rows}}}"
    improving = "clients.sampling={kind: improving}"
    if rows == "common":
        assert training_setup(opened(split, improving), 0)
    else:
        with pytest.raises(
            UserError,
            match=r"kind: got improving, expected uniform or by_size, since no client of data/digits has 10 validation",
        ):
            training_setup(opened(split, improving), 0)
        assert training_setup(opened(split, "clients.sampling={kind: by_size}"), 0)
    with pytest.raises(UserError, match=r"Raise data\.split\.validation, or use one of these\.$"):
        training_setup(opened("data.split={validation: 0, test: 0.2}", improving), 0)


def test_a_client_that_is_never_trained_joins_nothing(opened):
    scheme = "data.scheme=[{kind: equal, clients: 6}, {kind: fresh, per_domain: 1}]"
    with pytest.raises(UserError, match=r"got '?c05'?, expected a client of data/digits that takes part"):
        training_setup(opened(scheme, "clients.join={c05: 3}"), 0)


def test_the_first_round_of_a_client_is_a_number(opened):
    with pytest.raises(UserError, match=r"clients\.join\.c05: got 0, expected at least 1"):
        opened("clients.join={c05: 0}")


def test_a_model_that_no_memory_holds_is_told_before_anything_of_its_size_is_made(opened):
    with pytest.raises(UserError) as told:
        training_setup(opened("model.hidden=[10000000, 10000000]", "model.members=1000"), 0)
    assert str(told.value).startswith(
        "params.yaml: model: got 100,000,760,000,010,000 parameters of 1,000 members, trained in a stack of 1 clients "
        "(16 bytes for each parameter: weight, gradient and optimiser), which needs 1,600,012.2 TB "
    )
    assert str(told.value).endswith(" that are free. Make the model smaller, or its members fewer.")


def test_a_stack_that_no_memory_holds_is_told_with_the_way_out(opened, monkeypatch):
    monkeypatch.setattr("silos.io.memory_and_disk.free_bytes", lambda: 10**9)
    large = ["model.hidden=[100000]", "model.members=4"]  # 0.48 GB for each client
    with pytest.raises(UserError, match=r"trained in a stack of 6 clients .* that are free\. Set engine\.stack to 1\."):
        training_setup(opened(*large, "engine.stack=8"), 0)
    assert training_setup(opened(*large, "engine.stack=1"), 0).stack == 1


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ifca", "{clusters: 1000, restarts: 1000}"),
        ("conditional", "{statistics: [{kind: loadings, components: 10000}]}"),
        ("uefl", "{words: 100000}"),
        ("vq_oracle", "{words: 100000}"),
        ("fedsr", "{width: 100000}"),
    ],
)
def test_networks_of_a_method_that_no_memory_holds_are_told_before_they_are_made(method, options, opened, monkeypatch):
    monkeypatch.setattr("silos.io.memory_and_disk.free_bytes", lambda: 10**10)  # enough for what params alone ask for
    project = opened(f"method.{method}={options}", "model.hidden=[1000000]")
    with pytest.raises(
        UserError, match=rf"params\.yaml: method\.{method}.*: .* parameters, which needs .* that are free"
    ):
        method_of(project.params, method).init(training_setup(project, 0))


PRIVATE = ("training.privacy={epsilon: 4}", "training.epochs=1")
SECURE = ("training.privacy={epsilon: 4, secure_sums: true, least: 5, colluders: 2}", "training.epochs=1")


def test_params_set_the_noise_and_the_sums_of_private_training(opened):
    own, secure = (training_setup(opened(*each), 0).training.privacy for each in (PRIVATE, SECURE))
    assert own.secure is None
    assert secure == replace(own, secure=SecureSums(5, 2))
    everyone = opened("training.privacy={epsilon: 4, secure_sums: true}", "training.epochs=1")
    assert training_setup(everyone, 0).training.privacy.secure == SecureSums(0, 1)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "training.epochs=2",
            "training.epochs: got 2, expected 1 with training.privacy.secure_sums, since all silos take",
        ),
        (
            "training.optimiser={kind: sgd, learning_rate: 1.0, state: kept}",
            "training.optimiser.state: got kept, expected reset with training.privacy.secure_sums",
        ),
        ("aggregation={rule: median}", "aggregation.rule: got median, expected mean with training.privacy.secure_sums"),
        ("aggregation={clip: 1.0}", "aggregation.clip: got 1.0, expected null with training.privacy.secure_sums"),
    ],
)
def test_what_secure_sums_cannot_do_is_refused_with_the_way_out(override, said, opened):
    with pytest.raises(UserError, match=re.escape(said)):
        training_setup(opened(*SECURE, override), 0)
    training_setup(opened(*PRIVATE, override), 0)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("least: 40", "least: got 40, expected at most"),
        ("least: 2", "expected more than half of them"),
        ("colluders: 30", "expected more than 30, which may collude"),
    ],
)
def test_a_sum_that_no_round_can_have_is_refused_before_training(override, said, opened):
    privacy = f"training.privacy={{epsilon: 4, secure_sums: true, {override}}}"
    with pytest.raises(UserError, match=said):
        training_setup(opened(privacy, "training.epochs=1"), 0)


@pytest.mark.parametrize("override", ["training.rows=balanced", "model.dropout=0.1"])
def test_what_shows_rows_whatever_noise_is_added_is_refused(override, opened):
    key = override.partition("=")[0]
    with pytest.raises(UserError, match=rf"{re.escape(key)}: got .* or training.privacy.epsilon to null"):
        training_setup(opened(*PRIVATE, override), 0)


def test_the_batch_size_moves_no_client_to_another_stack_under_privacy(opened):
    wide = "model.hidden=[1000]"
    own, large = (training_setup(opened(*PRIVATE, wide, f"training.batch={rows}"), 0).stack for rows in (16, 1000))
    assert own == large, "clients of a stack are part of a question, which has noise and a cost of its own"
    assert training_setup(opened(wide, "training.batch=1000"), 0).stack < own

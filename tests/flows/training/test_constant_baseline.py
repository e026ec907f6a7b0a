"""The baseline: one answer for all rows, on the clients and test rows that methods are scored on."""

import math

import numpy as np
import pytest

from flows.project.project import Project
from flows.training.constant_baseline import against_baseline, baseline, scored_baseline
from silos import cohort
from silos.client_store import ClientStore
from tasks.evaluate import OUTCOMES

# by client: labels of training rows, then of test rows. Over all training rows of clients that train, "no" is the commonest
# class, though two of these three clients have more of "yes"; the client that is held out has most of "else"
LABELS = {
    "large": (["no"] * 10 + ["yes"], ["no"] * 3 + ["yes"]),
    "small": (["yes"] * 4 + ["no"], ["yes"] * 9 + ["no"]),
    "third": (["yes"] * 3, ["no"] * 2),
    "fourth": (["else"] * 40, ["no"] * 5),
}


@pytest.fixture
def open_labels(project):
    def opened(labels, *more, task="classification", times=10):
        rows = [
            (client, split, y)
            for client, parts in labels.items()
            for split, part in zip(("train", "test"), parts, strict=True)
            for y in part * (times if split == "train" else 1)  # clients report of ten rows or more
        ]
        client, split, y = map(np.array, zip(*rows, strict=True))
        x = np.random.default_rng(0).normal(size=(len(y), 3))
        held = np.where(client == "fourth", "held", "here")
        np.savez(project / "own.npz", x=x, y=y, client=client, split=split, domain=held)
        source = f"{{kind: npz, path: own.npz, task: {task}}}"
        steps = "{kind: column, column: client}, {kind: hold_out, domains: [held]}"
        settings = [
            f"data.source={source}",
            f"data.scheme=[{steps}]",
            "data.split={validation: 0, test: 0}",
            "model.kind=mlp",
        ]
        return Project.open([*settings, "data.name=own", *more], project, derived=True)

    return opened


def test_it_is_the_commonest_class_of_all_training_rows_and_a_mean_over_the_clients_that_train(open_labels):
    found = baseline(open_labels(LABELS))
    assert (found["name"], found["answer"], found["kind"]) == ('always "no"', "no", "commonest class")
    assert found["metrics"]["accuracy/mean"] == pytest.approx((3 / 4 + 1 / 10 + 1) / 3)
    assert found["metrics"]["accuracy/worst"] == pytest.approx(1 / 10)


def test_no_training_rows_stay_in_memory_for_it(open_labels):
    cohort.forget_stacks()
    baseline(open_labels(LABELS))
    assert {key[-1] for key in cohort._cache} == {"test"}


def test_of_equally_common_classes_it_is_the_first(open_labels):
    tie = {"large": (["b", "b", "a"], ["a"]), "small": (["a", "c"], ["b"]), "fourth": (["c"], ["c"])}
    assert baseline(open_labels(tie))["answer"] == "a"


@pytest.mark.parametrize("scaled", ["none", "standardise"])
def test_of_a_regression_it_is_the_mean_target_in_units_of_y(scaled, open_labels):
    numbers = {"large": ([1.0, 2.0, 3.0], [4.0, 0.0]), "small": ([10.0], [7.0]), "fourth": ([500.0], [500.0])}
    objective = "training.objective={kind: squared_error}"
    found = baseline(open_labels(numbers, objective, f"model.targets={scaled}", task="regression"))
    assert (found["name"], found["answer"], found["kind"]) == ("always 4.000", 4.0, "mean target")
    mean_squares = [(0 + 16) / 2, 9.0]
    assert found["metrics"]["rmse/pooled"] == pytest.approx(math.sqrt(sum(mean_squares) / 2))
    assert found["metrics"]["rmse/worst"] == pytest.approx(3.0)


def test_on_common_test_rows_every_client_is_scored_on_all_of_them(open_labels):
    found = baseline(open_labels(LABELS, "data.split={validation: 0, test: 0, test_rows: common}"))
    assert found["metrics"]["accuracy/mean"] == found["metrics"]["accuracy/worst"] == pytest.approx(11 / 21)


METRIC = """
from dataclasses import dataclass
import numpy as np
from flows.plugins import register_metric
from models.metrics.client_metrics import ClientMetric

@register_metric("cost")
@dataclass(frozen=True)
class Cost(ClientMetric):
    higher_is_better = False
    undefined_if = ""
    of_probabilities = {of_probabilities}

    def row_values(self, prediction, y):
        return np.where(prediction.argmax(1) == y, 0.0, np.where(y == 2, 9.0, 1.0))

    def constant(self, shares):
        return np.array({logits})
"""


COST = ["plugins=[own.py]", "evaluation.metrics=[{kind: cost}]", "evaluation.metric=cost"]


@pytest.mark.parametrize(
    ("logits", "of_probabilities", "named"),
    [
        ("shares", False, ('always "no"', "no", "commonest class")),
        ("shares", True, ("always the same probabilities", "no", "share of each class")),
        (
            "shares * [1, 1, 9]",
            False,
            ('always "yes"', "yes", "constant answer for cost, from the shares of the classes"),
        ),
    ],
)
def test_a_plugins_metric_says_what_constant_it_is_compared_with(logits, of_probabilities, named, open_labels, project):
    (project / "own.py").write_text(METRIC.format(logits=logits, of_probabilities=of_probabilities))
    opened = open_labels(LABELS, *COST)
    assert opened.silos.manifest.classes == ("else", "no", "yes")
    found = baseline(opened)
    assert (found["name"], found["answer"], found["kind"]) == named
    of_yes = named[1] == "yes"
    cost = [3 / 4, 1 / 10, 1.0] if of_yes else [9 / 4, 81 / 10, 0.0]
    assert found["metrics"]["cost/mean"] == pytest.approx(np.mean(cost))
    assert found["metrics"]["accuracy/mean"] == pytest.approx((3 / 4 + 1 / 10 + 1) / 3)


def test_a_constant_that_is_no_number_for_each_class_is_refused(open_labels, project):
    (project / "own.py").write_text(METRIC.format(logits="[1.0]", of_probabilities=False))
    with pytest.raises(
        ValueError, match=r"metric 'cost': constant: got \[1\.0\], expected a finite number for each of 3"
    ):
        baseline(open_labels(LABELS, *COST))


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        ("accuracy", 'always predicting "no", the commonest class of the training rows'),
        ("balanced_accuracy", 'always predicting "no", the commonest class of the training rows'),
        ("auc", 'always predicting "no", the commonest class of the training rows (auc 0.500)'),
        ("log_loss", "always predicting the same probabilities, the share of each class of the training rows"),
        ("brier", "always predicting the same probabilities, the share of each class of the training rows"),
    ],
)
def test_of_noise_no_method_is_better_whatever_the_metric(metric, named, open_labels, tmp_path):
    """Every method has the baseline's outcomes, on other rows."""
    rng = np.random.default_rng(0)
    drawn = {name: [rng.choice(["no", "yes"], n, p=[0.7, 0.3]).tolist() for n in (80, 60)] for name in ("a", "b", "c")}
    project = open_labels({**drawn, "fourth": (["no"], ["no"])}, f"evaluation.metric={metric}")
    with scored_baseline(project) as found:
        store, refs = found.outcomes
        runs = {}
        for method in ("fedavg", "local_only"):
            other, hashes = ClientStore(str(tmp_path / method)), {}
            for client, ref in refs.items():
                kept = store.load(OUTCOMES, {client: ref}, client)
                moved = {name: rng.permutation(values)[None] for name, values in kept.items()}
                hashes |= other.save(OUTCOMES, [client], moved, "outcomes")
            runs[method] = [(other, hashes)]
        answer = against_baseline(project, found, runs, tuned=True)
    assert [pair["method"] for pair in answer["paired"]] == ["fedavg", "local_only"]
    assert answer["sentence"].startswith(f"No method is certainly better than {named}")


def test_a_client_with_fewer_than_ten_training_rows_does_not_count(open_labels):
    few = {"large": (["a"] * 6 + ["b"] * 4, ["a"]), "small": (["b"] * 9, ["b"]), "fourth": (["c"], ["c"])}
    project = open_labels(few, times=1)
    with scored_baseline(project) as found:
        assert found.about["answer"] == "a"
    assert not [*project.store.client_folder.glob("constant/*")]


def test_without_test_rows_there_is_none(open_labels):
    assert baseline(open_labels({client: (train, []) for client, (train, _) in LABELS.items()})) is None


def right_on(project, folder, right):
    """The outcomes of a run that is right on the rows of which `right` says so, by client; a file a client."""
    store, refs = ClientStore(str(folder)), {}
    for client in project.silos.federated().clients:
        outcome = np.array([right(client, y) for y in LABELS[client][1]], np.uint8)
        refs |= store.save(OUTCOMES, [client], {"correct": outcome[None]}, "outcomes")
    return store, refs


@pytest.mark.parametrize(
    ("right", "gain"),
    [
        (lambda _, y: y == "no", 0.0),  # what the baseline answers
        (lambda *_: True, (1 / 4 + 9 / 10 + 0) / 3),
        (lambda client, y: y == "no" and client != "third", -1 / 3),
    ],
    ids=["equal", "better", "worse"],
)
def test_a_method_is_compared_with_it_row_by_row_and_what_is_not_better_is_said(right, gain, open_labels, tmp_path):
    project = open_labels(LABELS)
    runs = {"mine": [right_on(project, tmp_path / "runs", right)] * 2}
    with scored_baseline(project) as found:
        answer = against_baseline(project, found, runs, tuned=False)
    (paired,) = answer["paired"]
    assert paired["difference"] == pytest.approx(gain)
    assert paired["sentence"].startswith('mine − always "no" ')
    if gain > 0:
        assert (paired["better"], answer["sentence"]) == ("mine", None)
    else:
        said = 'No method is certainly better than always predicting "no", the commonest class of the training rows'
        start = f"{said} (accuracy 0.617): try "
        assert answer["sentence"].startswith(start)


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (lambda *_: True, "No method is certainly better by what matters (90.0 points) than always"),
        (lambda *_: False, None),
    ],
    ids=["a small gain", "a small loss"],
)
def test_a_difference_smaller_than_what_matters_has_no_winner_and_a_small_gain_is_not_denied(
    right, said, open_labels, tmp_path
):
    project = open_labels(LABELS, "comparison.matters=0.9")
    with scored_baseline(project) as found:
        answer = against_baseline(
            project, found, {"mine": [right_on(project, tmp_path / "runs", right)] * 2}, tuned=False
        )
    assert answer["paired"][0]["better"] is None
    assert answer["sentence"].startswith(said or "No method is certainly better than always")


@pytest.mark.parametrize(
    ("tuned", "more", "advice"),
    [
        (
            False,
            [],
            "try `--tune`, fewer training.rounds, `--set evaluation.report=best` or `--set 'model.hidden=[]'`.",
        ),
        (True, ["model.hidden=[]"], "try fewer training.rounds or `--set evaluation.report=best`."),
        (False, ["model.hidden=[]", "evaluation.report=best"], "try `--tune`."),
        (True, ["model.hidden=[]", "evaluation.report=best"], "the inputs may not predict the target."),
    ],
)
def test_what_was_done_already_is_not_advised(tuned, more, advice, open_labels, tmp_path):
    project = open_labels(LABELS, *more)
    runs = {"mine": [right_on(project, tmp_path / "runs", lambda *_: False)]}
    with scored_baseline(project) as found:
        assert against_baseline(project, found, runs, tuned)["sentence"].endswith(f": {advice}")


def test_the_classes_name_is_short_in_the_table(open_labels):
    long = {"large": (["n" * 90], ["n" * 90]), "fourth": (["b"], ["b"])}
    found = baseline(open_labels(long))
    assert len(found["name"]) < 30
    assert found["answer"] == "n" * 90

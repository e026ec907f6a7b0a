"""What a user may write in params.yaml, and the sentence that answers a mistake."""

import pytest
import yaml

from flows.core.config.load_config import flatten_params, load_params, param_differences, quantity_of
from flows.core.config.params_schema import Params
from flows.methods.base import find_method, method_names
from flows.methods.fedprox import FedProx
from flows.methods.method_settings import method_of
from flows.project.project import Project
from models.metrics.client_metrics import METRICS_BY_NAME
from silos.errors import UserError

NO_WEIGHT = "training.objective.alpha: got only weights of 0, expected one above 0. Raise the weight of a class."

CLASSES = (
    "expected one of accuracy, auc, balanced_accuracy, brier, log_loss, macro_f1 for a classification. Choose one of "
    "them, or null."
)

MISTAKES = {
    "training.ruonds=3": "training.ruonds: got an unknown key. Did you mean rounds?",
    "runner.wrokers=3": "runner.wrokers: got an unknown key. Did you mean workers?",
    "trainig.rounds=3": "trainig: got an unknown key. Did you mean training?",
    "training.rounds=0": "training.rounds: got 0, expected at least 1.",
    "training.rounds=2.5": "training.rounds: got 2.5, expected a whole number.",
    "training.rounds=many": "training.rounds: got 'many', expected a whole number.",
    "training.rounds=": "training.rounds: got nothing, expected a whole number.",
    "training.optimiser.learning_rate=0": "training.optimiser.learning_rate: got 0, expected more than 0.",
    "training.optimiser.learning_rate=.inf": "training.optimiser.learning_rate: got inf, expected a finite number.",
    "training.optimiser.learning_rate=.nan": "training.optimiser.learning_rate: got nan, expected a finite number.",
    "training.optimiser.momentum=1": "training.optimiser.momentum: got 1, expected less than 1.",
    "training.optimiser={kind: adam, learning_rate: 1, momentum: 1}": (
        "training.optimiser.momentum: got an unknown key, expected one of kind, learning_rate, state, weight_decay."
    ),
    "training.optimiser.kind=sdg": "training.optimiser.kind: got 'sdg'. Did you mean sgd?",
    "training.optimiser={learning_rate: 1}": "training.optimiser: got no kind, expected one of sgd, adam, adamw. Add kind.",
    "training.optimiser={kind: sgd}": "training.optimiser.learning_rate: got nothing, expected a value. Add the key.",
    "training.objective={kind: focal, gama: 1}": "training.objective.gama: got an unknown key. Did you mean gamma?",
    "training.objective={kind: focal, gamma: -1}": "training.objective.gamma: got -1, expected at least 0.",
    "training.objective={kind: focal, gamma: .nan}": "training.objective.gamma: got nan, expected a finite number.",
    "training.objective={kind: focal, alpha: -1}": "training.objective.alpha: got -1, expected at least 0.",
    "training.objective={kind: focal, alpha: .inf}": "training.objective.alpha: got inf, expected a finite number.",
    "training.objective={kind: focal, alpha: x}": "training.objective.alpha: got 'x', expected a number.",
    "training.objective={kind: focal, alpha: true}": "training.objective.alpha: got True, expected a number.",
    "training.objective={kind: focal, alpha: 0}": NO_WEIGHT,
    "training.objective={kind: focal, alpha: [0, 0]}": NO_WEIGHT,
    "training.objective={kind: focal, alpha: [1, -1]}": "training.objective.alpha: got -1, expected at least 0.",
    "training.objective={kind: focal, alpha: [1, .nan]}": "training.objective.alpha: got nan, expected a finite number.",
    "clients.fraction=1.5": "clients.fraction: got 1.5, expected at most 1.",
    "clients.sampling.kind=best": "clients.sampling.kind: got 'best', expected one of uniform, by_size, improving.",
    "clients.sampling={}": "clients.sampling: got no kind, expected one of uniform, by_size, improving. Add kind.",
    "clients.sampling={kind: improving, focus: 1.1}": "clients.sampling.focus: got 1.1, expected at most 1.",
    "clients.sampling={kind: improving, focus: -0.1}": "clients.sampling.focus: got -0.1, expected at least 0.",
    "clients.sampling={kind: improving, focus: .nan}": "clients.sampling.focus: got nan, expected a finite number.",
    "clients.sampling={kind: improving, improvement: ever}": (
        "clients.sampling.improvement: got 'ever', expected 'last_seen' or 'within_round'."
    ),
    "clients.sampling={kind: by_size, focus: 1}": "clients.sampling.focus: got an unknown key, expected one of kind.",
    "clients=5": "clients: got 5, expected a section with keys.",
    "evaluation.stop_at=0": "evaluation.stop_at: got 0, expected more than 0.",
    "evaluation.stop_at=1.5": "evaluation.stop_at: got 1.5, expected at most 1, since it is an accuracy. Lower it.",
    "evaluation.metric=mae": f"evaluation.metric: got mae, {CLASSES}",
    "evaluation.metric=loss": f"evaluation.metric: got loss, a measure of one row, {CLASSES}",
    "evaluation.metric=acu": "evaluation.metric: got 'acu'. Did you mean auc?",
    "evaluation.metric=zzz": f"evaluation.metric: got 'zzz', {CLASSES}",
    "evaluation.report=worst": "evaluation.report: got 'worst', expected 'last' or 'best'.",
    "engine.device=gpu": "engine.device: got 'gpu', expected 'auto', 'cpu' or 'cuda'.",
    "engine.stack=often": ("engine.stack: got 'often', expected 'auto', or a whole number."),
    "tracking.personal_models=maybe": "tracking.personal_models: got 'maybe', expected true or false.",
    "model.hidden=64": "model.hidden: got 64, expected a list.",
    "model.members=0": "model.members: got 0, expected at least 1.",
    "model.hidden=[8, 0]": "model.hidden.1: got 0, expected at least 1.",
    "runner.kind=proceses": "runner.kind: got 'proceses', expected 'threads', 'processes', 'dask' or 'places'.",
    "runner.address=tcp://10.0.0.5:8786": (
        "runner: got the address of a Dask scheduler with kind threads, expected kind dask. Set kind "
        "to dask or address to null."
    ),
    "tracking.uri=http://10.0.0.5:70000": (
        "tracking.uri: got the port of http://10.0.0.5:70000, expected a number from 1 to 65535. Correct it."
    ),
    "tracking.uri=postgresql://me:hunter2@db/runs": "tracking.uri: got a password, expected none, since it would be "
    "printed and stored. Remove it (MLflow reads it from MLFLOW_TRACKING_URI, or from MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD).",
    "diagnose.noise={epsilon: 0.001}": "diagnose.noise.epsilon: got 0.001, expected at least 0.01.",
    "comparison.methods=[]": "comparison.methods: got [], expected 1 or more entries.",
    "comparison.methods=[fedavg, fedavg]": "comparison.methods: got fedavg twice, expected it once. Remove one of them.",
    "comparison.methods=[fedvag]": "comparison.methods: got an unknown method 'fedvag'. Did you mean fedavg?",
    "comparison.reference=fedvag": "comparison.reference: got an unknown method 'fedvag'. Did you mean fedavg?",
    "comparison.seeds=[-1]": "comparison.seeds.0: got -1, expected at least 0.",
    "method.fedporx.proximal=1": "method: got an unknown method 'fedporx'. Did you mean fedprox?",
    "data.scheme.1.angels=[0]": "data.scheme.1.angels: got an unknown key. Did you mean angles?",
    "data.scheme.0={kind: column, column: town}": ("data.scheme.0.column: got 'town', expected 'client' or 'domain'."),
    "data.scheme.0.kind=eqaul": "data.scheme.0.kind: got 'eqaul'. Did you mean equal?",
    "data.source={kind: digits, path: x}": "data.source.path: got an unknown key, expected one of kind.",
    "data.split={validation: 0.5, test: 0.5}": (
        "data.split: got validation 0.5 and test 0.5, expected a sum below 1, since no rows would be "
        "left to train on. Lower one of them."
    ),
    "data.scheme=[]": (
        "data.scheme: got no step, expected a first step that makes clients. Put `equal`, `column`, "
        "`dirichlet`, `shards`, `balanced`, `quantity` or `classes_per_cluster` first."
    ),
}

MISTAKES_OF_METHODS = {
    "method.fedprox.proximal=-1": "method.fedprox.proximal: got -1, expected at least 0.",
    "method.fedprox={proxmal: 1}": "method.fedprox.proxmal: got an unknown key. Did you mean proximal?",
    "method.fedavg={proximal: 1}": "method.fedavg.proximal: got an unknown key.",
    "method.virtual_authors.generation=[2019]": "method.virtual_authors.generation: got [2019], expected 2019 or 2020.",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_answered_with_a_sentence_that_names_key_value_and_way_out(project, override):
    with pytest.raises(UserError) as told:
        Project.open([override], project)
    assert str(told.value) == f"params.yaml: {MISTAKES[override]}"


@pytest.mark.parametrize("override", MISTAKES_OF_METHODS)
@pytest.mark.parametrize("asked", ["local_only", "fedprox"])
def test_whichever_method_is_asked_for_a_mistake_in_any_methods_section_is_told(project, override, asked):
    params = load_params(project, [override])
    with pytest.raises(UserError) as told:
        method_of(params, asked)
    assert str(told.value) == f"params.yaml: {MISTAKES_OF_METHODS[override]}"


@pytest.mark.parametrize("override", ["training.rounds", "=3", "", "training..rounds=3", ".rounds=3", "training.=3"])
def test_a_set_without_key_and_value_is_told_how_to_write_it(project, override):
    with pytest.raises(UserError) as told:
        load_params(project, [override])
    assert str(told.value) == f"--set {override}: expected section.key=value. Write it as in training.rounds=20."


@pytest.mark.parametrize(
    ("override", "section"),
    [
        ("training.rounds.x=3", "training.rounds"),
        ("data.scheme.9.kind=x", "data.scheme.9"),
        ("data.scheme.x=1", "data.scheme"),
    ],
)
def test_a_set_into_a_section_that_is_not_there_is_told(project, override, section):
    with pytest.raises(UserError) as told:
        load_params(project, [override])
    assert str(told.value) == f"--set {override}: got no section {section} in params.yaml, expected one."


@pytest.mark.parametrize(
    ("override", "whole"),
    [
        ("diagnose.noise.epsilon=4", "diagnose.noise={epsilon: 4}"),
        ("diagnose.noise.far.epsilon= 4", "diagnose.noise={far: {epsilon: 4}}"),
    ],
)
def test_a_set_into_a_section_that_is_null_is_told_how_to_write_it_whole(project, override, whole):
    with pytest.raises(UserError, match=r"got no section diagnose\.noise") as told:
        load_params(project, [override])
    assert str(told.value).endswith(f". Set all of it: `--set {whole}`.")


def test_a_set_whose_value_is_not_yaml_is_told(project):
    with pytest.raises(
        UserError,
        match=r"--set training\.rounds=\[: got '\[', expected a YAML value \(line 1, column 2: expected .*\)\.",
    ):
        load_params(project, ["training.rounds=["])


@pytest.mark.parametrize("section", ["data", "model", "training", "comparison"])
def test_a_missing_or_empty_section_is_named(project, section):
    raw = yaml.safe_load((project / "params.yaml").read_text())
    for written in ({k: v for k, v in raw.items() if k != section}, {**raw, section: None}):
        (project / "params.yaml").write_text(yaml.safe_dump(written))
        with pytest.raises(UserError) as told:
            load_params(project)
        assert str(told.value) == f"params.yaml: {section}: got nothing, expected a value. Add the key."


def test_a_set_into_options_that_are_all_commented_out_is_one_of_them(project):
    raw = yaml.safe_load((project / "params.yaml").read_text())
    (project / "params.yaml").write_text(yaml.safe_dump({**raw, "method": {"fedprox": None}}))
    assert load_params(project, ["method.fedprox.proximal=1"]).method["fedprox"] == {"proximal": 1}


def test_a_section_whose_lines_are_all_commented_out_has_its_defaults(project):
    raw = yaml.safe_load((project / "params.yaml").read_text())
    empty = {
        **raw,
        "clients": None,
        "engine": None,
        "tracking": None,
        "plugins": None,
        "method": {"fedprox": None},
    }
    (project / "params.yaml").write_text(yaml.safe_dump(empty))
    params = load_params(project)
    assert params.clients.fraction == 1.0
    assert params.engine.kind == "auto"
    assert method_of(params, "fedprox") == FedProx()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("training: [1,\nmodel: 2", "params.yaml is not valid YAML: line 2"),
        (
            "model: {kind: mlp}\nmodel: {kind: mlp}\n",
            "params.yaml is not valid YAML: line 2, column 1: got the key model twice",
        ),
        ("data:\n\tname: x\n", "params.yaml is not valid YAML: line 2, column 1: found character '\\t'"),
        ("", "params.yaml: got no sections, expected those of the file that `siloflow init DIR` writes."),
        ("- a\n- b\n", "params.yaml: got no sections, expected those of the file that `siloflow init DIR` writes."),
    ],
)
def test_a_file_that_is_not_sections_of_yaml_is_told(project, text, sentence):
    (project / "params.yaml").write_text(text)
    with pytest.raises(UserError) as told:
        load_params(project)
    assert str(told.value).startswith(sentence)


HOSTILE = {
    "lists as keys": ("[a, b]: 1", "got a list or a section as a key, expected text"),
    "sections as keys": ("{a: b}: 1", "got a list or a section as a key, expected text"),
    "a number of 5,000 digits": (f"a: {'1' * 5000}", "…11111111111111111111, expected a whole number"),
    "binary without digits": ("a: 0b_", "got 0b_, expected a whole number"),
    "hexadecimal without digits": ("a: 0x_", "got 0x_, expected a whole number"),
    "a tag of another type": ("a: !!int many", "got many, expected a whole number"),
    "a tag for nothing": ('a: !!float ""', ", expected a number"),
    "a date by force": ("a: !!timestamp soon", "got the tag !!timestamp, expected text"),
    "100,000 brackets": ("a: " + "[" * 100_000, "got more than 50 nested lists and sections"),
    "100,000 sections": ("a: " + "{b: " * 100_000, "got more than 50 nested lists and sections"),
    "Python": ("a: !!python/object/apply:os.system [ls]", "got the tag !!python/object/apply:os.system"),
    "an alias of itself": ("a: &x [*x]", "got the alias x inside the value that it names"),
    "an unknown alias": ("a: *x", "found undefined alias"),
    "a null byte": ("a: \0", "special characters are not allowed"),
}


def laughs(merge: bool) -> str:
    """Ten lists (or sections that are merged), each of ten times the one before it."""
    lines = ["a0: &a0 [1, 1]" if not merge else "a0: &a0 {k: 1}"]
    for i in range(1, 12):
        repeated = ", ".join([f"*a{i - 1}"] * 10)
        lines.append(f"a{i}: &a{i} " + (f"{{<<: [{repeated}]}}" if merge else f"[{repeated}]"))
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_yaml_that_no_person_means_is_answered_with_line_and_sentence(project, case):
    text, sentence = HOSTILE[case]
    (project / "params.yaml").write_text(f"# a comment\n{text}\n")
    with pytest.raises(UserError) as told:
        load_params(project)
    assert str(told.value).startswith("params.yaml is not valid YAML: line 2, column ")
    assert sentence in str(told.value)
    assert len(str(told.value)) < 300


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_a_set_with_yaml_that_no_person_means_is_answered_with_a_sentence(project, case):
    text, sentence = HOSTILE[case]
    with pytest.raises(UserError) as told:
        load_params(
            project, [f"training.rounds={{{text}}}" if text.startswith(("[a", "{")) else f"training.rounds={text[3:]}"]
        )
    assert sentence in str(told.value)
    assert len(str(told.value)) < 600


@pytest.mark.parametrize("merge", [False, True])
def test_aliases_that_multiply_are_refused(project, merge):
    (project / "params.yaml").write_text(laughs(merge))
    with pytest.raises(
        UserError,
        match=r"line \d+, column \d+: got more than 100,000 values, counting what aliases repeat, expected fewer\.",
    ):
        load_params(project)


def test_keys_are_words_as_they_are_written(project):
    (project / "params.yaml").write_text(
        (project / "params.yaml").read_text().replace("join: {}", "join: {7: 2, 01: 3, on: 4}")
    )
    assert load_params(project).clients.join == {"7": 2, "01": 3, "on": 4}
    assert load_params(project, ["clients.join.7=5", "clients.join.2026-01-31=6"]).clients.join == {
        "7": 5,
        "01": 3,
        "on": 4,
        "2026-01-31": 6,
    }


@pytest.mark.parametrize("override", ["training.rounds=1:30", "training.rounds=+1:30:59", "training.epochs=1:30.5"])
def test_what_looks_like_a_time_is_no_number(project, override):
    with pytest.raises(UserError, match=r"expected a whole number\."):
        load_params(project, [override])


def test_a_number_with_a_zero_before_it_is_decimal(project):
    params = load_params(project, ["training.rounds=010", "training.batch=08", "clients.fraction=00.5"])
    assert (params.training.rounds, params.training.batch, params.clients.fraction) == (10, 8, 0.5)


@pytest.mark.parametrize(
    "override",
    [
        "training.rounds=true",
        "training.optimiser.learning_rate=true",
        "model.hidden=[8, yes]",
        "clients.join={c01: true}",
        "evaluation.stop_at=on",
        "data.seed=false",
        "data.source={kind: mnist, rows: {train: true}}",
        "data.scheme.1.angles=[0, true]",
        "engine.stack=true",
        "method.fedprox.proximal=true",
        "method.ifca.clusters=true",
    ],
)
def test_true_is_no_number(project, override):
    with pytest.raises(UserError, match="expected a"):
        method_of(load_params(project, [override]), "fedavg")


def test_what_looks_like_a_date_is_a_word(project):
    with pytest.raises(UserError, match=r"training\.rounds: got '2026-99-99', expected a whole number\."):
        load_params(project, ["training.rounds=2026-99-99"])
    assert load_params(project, ["data.source={kind: npz, path: 2026-01-31}"]).data.source.path == "2026-01-31"


@pytest.mark.parametrize("place", ["²", "٣", "1" * 5000, "-1", "1_0"])
def test_only_plain_digits_are_a_place_in_a_list(project, place):
    with pytest.raises(UserError, match=r"got no section data\.scheme\."):
        load_params(project, [f"data.scheme.{place}.kind=equal"])


def test_a_folder_without_params_is_told(tmp_path):
    with pytest.raises(UserError, match=r"test_a_folder_without_params_i0: got no params\.yaml, expected a project"):
        load_params(tmp_path)


def test_several_mistakes_are_told_at_once(project):
    with pytest.raises(UserError) as told:
        load_params(project, ["training.rounds=0", "clients.fraction=2"])
    assert str(told.value).splitlines() == [
        "params.yaml: training.rounds: got 0, expected at least 1.",
        "params.yaml: clients.fraction: got 2, expected at most 1.",
    ]


def test_overrides_reach_into_sections_and_lists(project):
    params = load_params(
        project,
        [
            "data.scheme.1.angles=[0,90]",
            "data.scheme.0.clients=4",
            "training.optimiser.learning_rate=1e-2",
            "model.hidden=[]",
        ],
    )
    assert params.data.scheme[1].angles == (0, 90)
    assert params.data.scheme[0].clients == 4
    assert params.training.optimiser.learning_rate == 0.01
    assert params.model.hidden == []


def test_overrides_make_sections_that_the_file_left_out(project):
    raw = yaml.safe_load((project / "params.yaml").read_text())
    del raw["clients"]
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    params = load_params(project, ["clients.dropout=0.5", "method.fedprox.proximal=0.25"])
    assert params.clients.dropout == 0.5
    assert method_of(params, "fedprox").proximal == 0.25


def test_the_last_override_of_a_key_counts(project):
    assert load_params(project, ["training.rounds=5", "training.rounds=7"]).training.rounds == 7


def test_a_users_own_method_may_be_named_anywhere(project):
    page = (
        "from flows.methods import fedavg\nfrom flows.plugins import register_method\n\n\n"
        "@register_method('mine')\nclass Mine(fedavg.FedAvg):\n    x: int = 1\n"
    )
    (project / "mine.py").write_text(page)
    params = load_params(project, ["plugins=[mine.py]", "comparison.methods=[fedavg, mine]", "method.mine.x=4"])
    assert method_of(params, "mine").x == 4
    params = load_params(project, ["plugins=[mine.py]", "method.mine.x=four"])
    with pytest.raises(UserError) as told:
        method_of(params, "mine")
    assert str(told.value) == "params.yaml: method.mine.x: got 'four', expected a whole number."


def test_differences_name_every_leaf_that_changed():
    old = {"a": {"b": 1, "c": [{"kind": "x"}, {"kind": "y"}]}, "same": 2, "gone": {}}
    new = {"a": {"b": 3, "c": [{"kind": "x"}, {"kind": "z"}]}, "same": 2, "new": "here"}
    assert param_differences(old, new) == ["a.b: 1 → 3", "a.c.1.kind: y → z", "gone: {} → None", "new: None → here"]
    assert param_differences(old, old) == []


def test_flat_has_dotted_keys():
    assert flatten_params({"a": {"b": [1, 2]}, "c": [{"d": 0}]}) == {"a.b": [1, 2], "c.0.d": 0}


def test_params_come_back_from_their_json(project):
    params = load_params(project)
    (project / "params.yaml").write_text(yaml.safe_dump(params.model_dump(mode="json")))
    assert load_params(project) == params


def test_a_regression_may_stop_at_any_rmse(project):
    params = load_params(project, ["training.objective={kind: squared_error}", "evaluation.stop_at=14.9"])
    assert params.evaluation.stop_at == 14.9


def test_a_metric_has_the_task_of_the_objective_and_bounds_where_training_may_stop(project):
    regression = "training.objective={kind: squared_error}"
    with pytest.raises(
        UserError, match=r"got auc, expected one of mae, r2, rmse for a regression\. Choose one of them"
    ):
        load_params(project, [regression, "evaluation.metric=auc"])
    assert quantity_of(load_params(project, [regression, "evaluation.metric=r2"])).name == "r2"
    assert quantity_of(load_params(project, ["evaluation.metric=accuracy"])) is METRICS_BY_NAME["accuracy"]
    assert load_params(project, ["evaluation.metric=log_loss", "evaluation.stop_at=1.7"]).evaluation.stop_at == 1.7
    with pytest.raises(UserError, match=r"stop_at: got 1\.7, expected at most 1, since it is an auc\. Lower it"):
        load_params(project, ["evaluation.metric=auc", "evaluation.stop_at=1.7"])


def test_the_aggregation_is_checked_and_trim_belongs_to_the_trimmed_mean(project):
    for clip in ("0", "-1"):
        with pytest.raises(
            UserError, match=rf"aggregation\.clip: got {clip}, expected more than 0, or null\. Use null"
        ):
            load_params(project, [f"aggregation.clip={clip}"])
    with pytest.raises(UserError, match=r"aggregation: got trim with rule median, expected trimmed_mean\. Remove trim"):
        load_params(project, ["aggregation={rule: median, trim: 0.3}"])
    assert load_params(project, ["aggregation={rule: trimmed_mean, trim: 0.3}"]).aggregation.trim == 0.3


def test_rows_of_a_regression_cannot_be_balanced_by_class(project):
    with pytest.raises(UserError, match="training: got balanced, expected shuffled, since a regression has no classes"):
        load_params(project, ["training.objective={kind: squared_error}", "training.rows=balanced"])


@pytest.mark.parametrize("record", [Params, *map(find_method, method_names())], ids=lambda record: record.__name__)
def test_every_number_of_params_has_an_upper_bound(record):
    def unbounded(schema, where):
        if isinstance(schema, list):
            return [found for i, each in enumerate(schema) for found in unbounded(each, f"{where}.{i}")]
        if not isinstance(schema, dict):
            return []
        bounds = {"maximum", "exclusiveMaximum", "const", "enum"} & schema.keys()
        mine = [where] if schema.get("type") in ("integer", "number") and not bounds else []
        return mine + [found for key, each in schema.items() for found in unbounded(each, f"{where}.{key}")]

    assert unbounded(record.model_json_schema(), record.__name__) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.hidden=[1000000000000]", "model.hidden.0: got 1000000000000, expected at most 10,000,000."),
        (f"model.hidden={[1] * 101}", "expected at most 100 entries."),
        ("model.members=1000000000000", "model.members: got 1000000000000, expected at most 1,000."),
        ("aggregation.clip=1e300", "aggregation.clip: got '1e300', expected at most 1,000,000,000."),
        ("training.rounds=1000000000000", "training.rounds: got 1000000000000, expected at most 1,000,000,000."),
        ("training.optimiser.learning_rate=1e300", "learning_rate: got '1e300', expected at most 1,000,000,000."),
        ("comparison.seeds=[9223372036854775808]", "expected at most 9,223,372,036,854,775,807."),
        ("data.features=[{name: a, low: 0, high: 1.0e+39}]", "expected at most 3.4e+38."),
        ("data.scheme.0.clients=1000000000000", "clients: got 1000000000000, expected at most 10,000,000."),
        ("data.scheme=[{kind: equal, clients: 2}, {kind: noise, sd: 1e308}]", "expected at most 1,000,000,000."),
        ("data.scheme=[{kind: dirichlet, clients: 2, alpha: 1e-320}]", "expected at least 1e-09."),
        ("data.source={kind: synthetic, task: linear, rows: 1000000000000000}", "expected at most 1,000,000,000."),
    ],
)
def test_a_number_beyond_any_machine_is_told_with_the_largest_that_is_taken(project, override, sentence):
    with pytest.raises(UserError) as told:
        load_params(project, [override])
    assert str(told.value).endswith(sentence)
    assert len(str(told.value)) < 400

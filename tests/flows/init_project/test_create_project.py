"""`siloflow init`: a project of anybody's file, and nothing of it where the file is none."""

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.main import get_command

from flows.cli import app
from flows.init_project import create_project as params_template
from flows.init_project.create_project import create_project
from flows.init_project.infer_schema import DataOptions
from flows.methods import base as methods
from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.training_setup import training_setup
from models.prng import server_stream
from silos.errors import UserError
from silos.sources.source_registry import load_source
from silos.sources.tabular import table_reader
from silos.sources.tabular.number_parser import WrittenNumbers

ROOT = Path(__file__).parents[3]
ROWS = 60
COLUMNS: dict[str, list[Any]] = {
    "visit_id": [1000 + at for at in range(ROWS)],
    "age": [20 + at % 50 for at in range(ROWS)],
    "sex": ["f" if at % 2 else "m" for at in range(ROWS)],
    "admitted": [f"2024-01-{1 + at % 28:02}" for at in range(ROWS)],
    "hospital": [("north", "south")[at % 2] for at in range(ROWS)],
    "outcome": [("ill", "well", "dead")[at % 3] for at in range(ROWS)],
}
NUMBER: dict[str, Any] = {"outcome": [at / 7 for at in range(ROWS)]}


@pytest.fixture
def write(tmp_path):
    def csv(name: str = "visits.csv", **columns: Any) -> Path:
        held = {**COLUMNS, **columns}
        lines = [",".join(map(str, row)) for row in zip(*held.values(), strict=True)]
        (tmp_path / name).write_text("\n".join([",".join(held), *lines]), encoding="utf-8")
        return tmp_path / name

    return csv


@pytest.fixture
def save(tmp_path):
    def npz(**arrays: np.ndarray) -> Path:
        np.savez(tmp_path / "mine.npz", **{"client": np.arange(ROWS) % 2, "y": np.arange(ROWS) % 3, **arrays})
        return tmp_path / "mine.npz"

    return npz


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def params_of(made: dict[str, Any]) -> Any:
    return Project.open(root=Path(made["folder"])).params


def test_without_a_file_it_is_the_project_of_the_checkout(tmp_path):
    create_project(tmp_path / "new", None, DataOptions())
    written = (tmp_path / "new" / "params.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(written) == yaml.safe_load(params_template.template_text())
    assert len(written.splitlines()) == len(params_template.template_text().splitlines()) + 1


def test_a_table_becomes_silos_by_what_was_guessed_of_it(tmp_path, write):
    made = create_project(tmp_path / "study", write(), DataOptions())
    assert made["guessed"] == [
        "label outcome (by its name)",
        "client hospital (by its name)",
        "left out: visit_id (another in each row), admitted (dates)",
    ]
    assert made["read"] == {"rows": ROWS, "shape": [3], "classes": 3, "clients": 2}  # age, sex=f and sex=m
    done = make(Project.open(root=tmp_path / "study"))
    assert (done["name"], done["clients"], sum(done["rows"].values())) == ("visits", 2, ROWS)


def test_a_number_that_may_be_a_missing_value_is_said_with_its_share_and_the_key(tmp_path, write):
    codes = np.where(np.arange(ROWS) % 15 == 3, -999, np.arange(ROWS) * 7)
    made = create_project(tmp_path / "study", write(price=codes), DataOptions())
    share = f"{100 * (codes < 0).mean():.2g}"
    way_out = "data.source.na_values, before the first report"
    note = f"numbers that may be missing values ({way_out}): price (-999 in {share} % of rows)"
    assert note in made["guessed"]


def test_the_folder_is_ready_for_versions_and_git_has_no_row(tmp_path, write, monkeypatch):
    monkeypatch.setattr("flows.init_project.create_project.first_commit", lambda _: False)
    made = create_project(tmp_path / "study", write(), DataOptions())
    assert made["repositories"] == ["git", "DVC"]
    make(Project.open(root=tmp_path / "study"))
    listed = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=tmp_path / "study", capture_output=True, text=True, check=True
    )
    named = {line.split()[1] for line in listed.stdout.splitlines()}
    assert named == {
        ".dvc/.gitignore",
        ".dvc/config",
        ".dvcignore",
        ".gitignore",
        "params.yaml",
        "prefect.yaml",
        "data.dvc",
    }


def test_no_comment_points_to_a_page_that_is_not_there_without_saying_where_it_is(tmp_path, write):
    create_project(tmp_path / "study", write(), DataOptions())
    for name in ("params.yaml", "prefect.yaml"):
        text = (tmp_path / "study" / name).read_text()
        assert text.splitlines()[1].startswith("# docs/ is in siloflow's repository;")
        assert "docs/methods" not in text
        commands = re.findall(r"siloflow (\w+) (\S+?)[\s`;,]", text)
        assert {what for verb, what in commands if verb == "methods"} - {"NAME"} <= {*methods.method_names()}
        assert {verb for verb, what in commands if what == "--help"} - {"COMMAND"} <= set(get_command(app).commands)


def test_a_project_of_init_has_the_deployments_of_the_checkout(tmp_path, write):
    create_project(tmp_path / "study", write(), DataOptions())
    there, here = ((folder / "prefect.yaml").read_text() for folder in (tmp_path / "study", ROOT))
    assert yaml.safe_load(there) == yaml.safe_load(here)
    assert (ROOT / "flows" / "init_project" / "prefect.yaml").read_text() == here


@pytest.mark.parametrize("known", [True, False])
def test_a_repository_that_init_makes_begins_with_a_commit_if_git_knows_the_author(known, tmp_path, write, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{name}_NAME", raising=False)
        monkeypatch.delenv(f"GIT_{name}_EMAIL", raising=False)
    monkeypatch.delenv("EMAIL", raising=False)
    (tmp_path / "gitconfig").write_text("[user]\n name = n\n email = n@localhost\n" if known else "")
    made = create_project(tmp_path / "study", write(), DataOptions())
    assert made["committed"] is known
    assert (git(tmp_path / "study", "status", "--porcelain") == "") is known
    if known:
        listed = git(tmp_path / "study", "ls-tree", "-r", "--name-only", "HEAD").split()
        assert listed == [".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore", "params.yaml", "prefect.yaml"]


def test_inside_a_repository_none_is_made(tmp_path, write, monkeypatch):
    file = write()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    made = create_project(Path("study"), file, DataOptions())
    assert (made["repositories"], made["committed"]) == (["DVC"], False)
    assert subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("name", ["visits[1].csv", "visits (2).csv", "#visits.csv"])
def test_git_leaves_the_file_out_whatever_it_is_called(tmp_path, write, name):
    create_project(tmp_path / "study", write(name), DataOptions())
    ignored = subprocess.run(["git", "check-ignore", name], cwd=tmp_path / "study", capture_output=True, check=False)
    assert ignored.returncode == 0


def test_numbers_are_a_regression_and_what_is_asked_is_not_guessed(tmp_path, write):
    made = create_project(tmp_path / "study", write(**NUMBER), DataOptions())
    params = params_of(made)
    assert (params.data.source.task, params.training.objective.kind) == ("regression", "squared_error")
    named = DataOptions(label="sex", client="outcome", task="classification")
    source = params_of(create_project(tmp_path / "other", write(), named)).data.source
    assert (source.label, source.client, source.task) == ("sex", "outcome", "classification")


@pytest.mark.parametrize("columns", [{}, NUMBER], ids=["classes", "numbers"])
def test_a_table_is_standardised_and_few_rows_are_given_a_linear_network_and_few_steps(tmp_path, write, columns):
    params = params_of(create_project(tmp_path / "study", write(**columns), DataOptions()))
    assert (params.model.kind, params.model.hidden, params.model.inputs) == ("mlp", [], "standardise")
    assert params.model.targets == ("standardise" if columns else "none")
    assert params.training.epochs == 1


@pytest.mark.parametrize(
    ("rows", "of_the_commonest", "hidden"),
    [(1999, 1000, []), (2000, 1000, [64]), (5000, 4050, []), (6000, 4860, [64])],
)
def test_rows_of_the_commonest_class_allow_no_hidden_layer(tmp_path, save, rows, of_the_commonest, hidden):
    y = np.repeat([0, 1], [of_the_commonest, rows - of_the_commonest])
    file = save(x=np.random.default_rng(0).normal(size=(rows, 5)), y=y, client=np.arange(rows) % 4)
    params = params_of(create_project(tmp_path / "study", file, DataOptions()))
    assert (params.model.hidden, params.training.epochs) == (hidden, 2 if hidden else 1)


@pytest.mark.parametrize(
    ("sizes", "clients", "epochs"),
    [
        ((100, 2000, 9000), None, 1),  # the median counts, not the mean or the smallest
        ((100, 1999, 9000), None, 2),
        ((4000, 4000), 4, 1),
        ((4000, 4000), 5, 2),
    ],
)
def test_silos_of_many_rows_pass_over_them_once_a_round(tmp_path, save, sizes, clients, epochs):
    rows = sum(sizes)
    x = np.random.default_rng(0).normal(size=(rows, 5))
    file = save(x=x, y=np.arange(rows) % 2, client=np.repeat(np.arange(len(sizes)), sizes))
    made = create_project(tmp_path / "study", file, DataOptions(clients=clients))
    assert params_of(made).training.epochs == epochs


@pytest.mark.parametrize(("count", "every", "at_once"), [(99_999, 1, 1), (100_000, 5, "auto")])
def test_many_rows_are_scored_every_fifth_round_and_their_runs_train_at_once(tmp_path, save, count, every, at_once):
    x = np.zeros((count, 1), np.float32)
    file = save(x=x, y=np.arange(count) % 2, client=np.arange(count) % 10)
    params = params_of(create_project(tmp_path / "study", file, DataOptions()))
    assert (params.evaluation.every, params.runner.parallel_runs) == (every, at_once)


def test_a_table_reports_its_best_round_and_keeps_rows_to_choose_it(tmp_path, write):
    params = params_of(create_project(tmp_path / "study", write(), DataOptions()))
    assert params.evaluation.report == "best"
    assert params.data.split.validation > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "silos", "metric"),
    [
        ([95, 25], 3, None),
        ([97, 23], 3, "auc"),
        ([97, 23], 0, "balanced_accuracy"),  # no silo has both classes
        ([50, 49, 21], 3, "balanced_accuracy"),
        ([40, 40, 40], 3, None),
        ([20, 20, 20, 20, 20, 11], 3, None),
        ([20, 20, 20, 20, 20, 9], 3, "balanced_accuracy"),
    ],
)
def test_the_metric_of_a_rare_class_is_not_accuracy(tmp_path, save, counts, silos, metric):
    y = np.repeat(np.arange(len(counts)), counts)
    rows = len(y)
    file = save(x=np.random.default_rng(0).normal(size=(rows, 5)), y=y, client=np.arange(rows) % silos if silos else y)
    made = create_project(tmp_path / "study", file, DataOptions())
    assert params_of(made).evaluation.metric == metric
    assert (f"methods are compared by {metric}, since a class is rare" in made["guessed"]) == (metric is not None)


def test_many_rows_are_given_hidden_layers_and_a_rate_that_many_features_do_not_make_diverge(tmp_path):
    x = np.random.default_rng(0).normal(size=(2000, 400))
    np.savez(tmp_path / "wide.npz", x=x, y=x[:, 0], client=np.arange(2000) % 4)
    params = params_of(create_project(tmp_path / "study", tmp_path / "wide.npz", DataOptions()))
    assert params.model.hidden == [64]
    assert params.training.optimiser.learning_rate == 0.001


def test_whole_numbers_are_classes_if_they_are_few(tmp_path, write):
    few = params_of(create_project(tmp_path / "few", write(outcome=[at % 4 for at in range(ROWS)]), DataOptions()))
    many = params_of(create_project(tmp_path / "many", write(outcome=list(range(ROWS))), DataOptions()))
    assert (few.data.source.task, many.data.source.task) == ("classification", "regression")


def test_a_file_in_the_folder_stays_where_it_is_and_one_elsewhere_is_copied(tmp_path, write):
    file = write()
    assert create_project(tmp_path / "study", file, DataOptions())["copied"] == "visits.csv"
    assert (tmp_path / "study" / "visits.csv").read_bytes() == file.read_bytes()
    (tmp_path / "here").mkdir()
    there = file.rename(tmp_path / "here" / file.name)
    assert create_project(there.parent, there, DataOptions())["copied"] is None
    assert params_of({"folder": there.parent}).data.source.path == "visits.csv"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "visits.csv").symlink_to(there)
    assert create_project(tmp_path / "linked", tmp_path / "linked" / "visits.csv", DataOptions())["copied"] is None


def test_rows_are_dealt_where_the_file_knows_no_silo(tmp_path, save):
    file = save(x=np.random.default_rng(0).normal(size=(ROWS, 5)))
    params = params_of(create_project(tmp_path / "study", file, DataOptions(clients=4)))
    assert [step.model_dump() for step in params.data.scheme] == [{"kind": "equal", "within": None, "clients": 4}]


@pytest.mark.parametrize(
    ("shape", "kind", "kernel"),
    [((8, 8), "cnn", 3), ((32, 32, 3), "cnn", 5), ((5,), "mlp", None), ((2, 9), "mlp", None)],
)
def test_the_network_fits_the_shape_and_can_be_begun(tmp_path, save, shape, kind, kernel):
    x = np.random.default_rng(0).integers(0, 256, (ROWS, *shape)).astype(np.uint8)
    made = create_project(tmp_path / "study", save(x=x), DataOptions())
    params = params_of(made)
    assert (params.model.kind, getattr(params.model, "kernel", None)) == (kind, kernel)
    project = Project.open(root=tmp_path / "study")
    make(project)
    assert training_setup(project, 0).network.init(server_stream(0, 0, "init"))


def test_missing_values_are_told_of_and_the_rows_are_read(tmp_path, write):
    age = ["" if at == 7 else 20 + at for at in range(ROWS)]
    made = create_project(tmp_path / "few", write(age=age), DataOptions())
    assert made["missing"] == [
        "1 of 60 rows with a missing value are dropped; later `predict` leaves out and lists rows without a "
        "feature (chosen, since 1.7% of the rows are at most a tenth: `missing: drop_rows`)",
        "or `--missing mean --force`: each silo's mean replaces missing numbers in 1 of 60 rows; later `predict` must know "
        "the silo of such a row",
        "or `--missing zero --force`: 0 replaces missing numbers in 1 of 60 rows; later `predict` does the same for every "
        "silo",
    ]
    assert made["read"]["rows"] == ROWS - 1
    half = create_project(tmp_path / "half", write(age=["" if at % 2 else at for at in range(ROWS)]), DataOptions())
    assert half["missing"][0] == (
        "each silo's mean replaces missing numbers in 30 of 60 rows; later `predict` must know the silo of such a row "
        "(chosen, since dropping would leave no row of client 'south' (30, where 'age' is empty): `missing: {fill: mean}`)"
    )
    assert "; no row is left of client 'south' (30, where 'age' is empty)" in half["missing"][1]
    assert half["read"]["rows"] == ROWS


def test_a_text_that_is_missing_is_a_category_of_its_own_unless_rows_go_anyway(tmp_path, write):
    sex = ["" if at % 4 == 0 else "fm"[at % 2] for at in range(ROWS)]
    made = create_project(tmp_path / "text", write(sex=sex), DataOptions())
    assert made["missing"][0].startswith(
        "a category for missing values in sex; predict takes such rows (chosen, since no"
    )
    assert made["read"] == {"rows": ROWS, "shape": [4], "classes": 3, "clients": 2}  # age, sex=f, sex=m, none
    hospital = ["" if at == 1 else ("north", "south")[at % 2] for at in range(ROWS)]
    with pytest.raises(
        UserError, match=r"the column 'hospital' has no value in 1 of 60 rows, .* 16 rows with any missing"
    ):
        create_project(tmp_path / "most", write(sex=sex, hospital=hospital), DataOptions())
    few = ["" if at in (1, 4) else "fm"[at % 2] for at in range(ROWS)]
    fewer = create_project(tmp_path / "fewer", write(sex=few, hospital=hospital), DataOptions())
    assert fewer["missing"] == [
        "2 of 60 rows with a missing value are dropped; later `predict` leaves out and lists rows without a "
        "feature (chosen, since hospital "
        "has no value in 1 of them: `missing: drop_rows`)"
    ]
    assert fewer["read"]["rows"] == ROWS - 2


@pytest.mark.parametrize(("first", "second"), [("client", "unit"), ("label", "client"), ("label", "unit")])
def test_a_column_has_one_role(tmp_path, write, first, second):
    options = DataOptions(**{"label": "outcome", "client": "hospital", first: "age", second: "age"})
    with pytest.raises(UserError, match=rf"--{second}: got age, which is the {first} too, expected another"):
        create_project(tmp_path / "study", write(), options)


LIMITS: list[Any] = ["<0.5" if at in (7, 9) else 1 + at / 8 for at in range(ROWS)]


def test_a_column_of_odd_numbers_is_left_out_on_a_line_of_its_own_with_row_value_and_count(tmp_path, write):
    made = create_project(tmp_path / "study", write(crp=LIMITS, share=[f"{at}%" for at in range(ROWS)]), DataOptions())
    crp, share = made["left_out"]
    assert crp.startswith(
        "crp: got limits among numbers, such as '<0.5' in row 9 (the header is row 1), in 2 of 60 rows, "
        "expected plain numbers. Add `--censored limit` to read <0.5 as 0.5 and >90 as 90, or `--censored half` to"
    )
    assert share.startswith(
        "share: got numbers that are not written plainly, such as '0%' in row 2 (the header is row 1)"
    )
    assert params_of(made).data.source.drop == ("visit_id", "admitted", "crp", "share")
    assert not any("crp" in guess for guess in made["guessed"])


@pytest.mark.parametrize(("censored", "value"), [("limit", 0.5), ("half", 0.25)])
def test_the_reading_of_limits_and_the_decimal_mark_may_be_given(tmp_path, write, censored, value):
    fees = ["950" if at % 2 else "1.250" for at in range(ROWS)]
    made = create_project(tmp_path / "study", write(crp=LIMITS, fee=fees), DataOptions(censored=censored, decimal="."))
    source = params_of(made).data.source
    assert (source.censored, source.decimal, made["left_out"]) == (censored, ".", [])
    rows = load_source(source, tmp_path / "study", 0)
    names = [feature.name for feature in rows.features]
    assert rows.x[7, names.index("crp")] == value
    assert rows.x[:2, names.index("fee")].tolist() == [1.25, 950]


def test_decimal_commas_beside_points_are_to_be_rewritten_since_no_option_reads_both(tmp_path, write):
    """`--decimal ,` would leave out the columns with points, and name no way back."""
    quotes = [f'"{10 + at},5"' for at in range(ROWS)]
    file = write(quote=quotes, size=[f"{1 + at}.5" for at in range(ROWS)])
    made = create_project(tmp_path / "study", file, DataOptions())
    assert made["left_out"] == [
        "quote: got numbers that are not written plainly, such as '10,5' in row 2 (the header is row 1), in 60 of 60 rows, "
        "expected a form such as 1234.5. To fix it, write them so, since size has decimal points, and one mark reads the "
        "whole file"
    ]
    made = create_project(tmp_path / "study", file, DataOptions(decimal=","), force=True)
    assert made["left_out"][0].endswith(
        "expected decimal commas, as `decimal` says. To fix it, write them so, or all columns with decimal points"
    )
    alone = create_project(tmp_path / "alone", write("b.csv", quote=quotes), DataOptions())
    assert "add `--decimal ,`" in alone["left_out"][0]


def test_columns_with_points_are_looked_for_once_however_many_have_commas(tmp_path, write, monkeypatch):
    looked: list[object] = []
    monkeypatch.setattr(table_reader, "WrittenNumbers", lambda texts: looked.append(texts) or WrittenNumbers(texts))
    counts = []
    for names in (["quote"], ["quote", "fee", "bid"]):
        commas = {name: [f'"{10 + at},5"' for at in range(ROWS)] for name in names}
        file = write(size=[f"{1 + at}.5" for at in range(ROWS)], **commas)
        made = create_project(tmp_path / names[-1], file, DataOptions())
        assert len(made["left_out"]) == len(names)
        counts.append(len(looked))
        looked.clear()
    assert counts[0] == counts[1] > 0


def test_a_label_of_odd_numbers_is_refused_unless_they_are_to_be_classes(tmp_path, write):
    file = write(outcome=[f"{1 + at}.500" for at in range(ROWS)])
    with pytest.raises(
        UserError, match=r"visits\.csv: the label 'outcome': got numbers that may be fractions or thousands, such as"
    ):
        create_project(tmp_path / "study", file, DataOptions())
    made = create_project(tmp_path / "study", file, DataOptions(decimal=","))
    assert params_of(made).data.source.task == "regression"


@pytest.mark.parametrize(("column", "other"), [("outcome", "ill"), ("hospital", "north")])
def test_an_r_na_in_label_or_client_is_a_missing_value_and_said_to_be(tmp_path, write, column, other):
    made = create_project(
        tmp_path / "study", write(**{column: ["NA" if at < 3 else other for at in range(ROWS)]}), DataOptions()
    )
    assert f"'NA' of {column} is a missing value" in made["guessed"]
    assert made["missing"][0].startswith("3 of 60 rows with a missing value are dropped; later `predict` leaves out")
    assert params_of(made).data.source.na_values == ("NA",)
    assert made["read"]["rows"] == ROWS - 3


@pytest.mark.parametrize(
    ("columns", "asked", "said"),
    [
        (
            {"target": COLUMNS["sex"]},
            DataOptions(),
            "outcome and target may each be the label. Name it with --label. The columns are 'visit_id', 'age'",
        ),
        ({"hospital": None}, DataOptions(), "the client. Name it with --client; or add `--clients 5` to deal the rows"),
        ({"site": COLUMNS["sex"]}, DataOptions(), "hospital and site may each be the client. Name it with --client"),
        (
            {},
            DataOptions(client="hospital", clients=5),
            "--client names the silo of each row, --clients deals the rows",
        ),
        (
            {},
            DataOptions(label="diagnosis"),
            "--label: got diagnosis, expected a column of visits.csv. Choose one of 'visit_id'",
        ),
    ],
)
def test_what_is_not_obvious_is_asked_for_with_the_columns_that_there_are(tmp_path, write, columns, asked, said):
    kept = {name: values for name, values in {**COLUMNS, **columns}.items() if values is not None}
    renamed = {f"other{at}": COLUMNS[name] for at, name in enumerate(COLUMNS.keys() - kept.keys())}
    file = write(**columns) if not renamed else _with_header(write(), COLUMNS.keys() - kept.keys())
    with pytest.raises(UserError) as refused:
        create_project(tmp_path / "study", file, asked)
    assert said in str(refused.value)
    assert not (tmp_path / "study").exists()


def _with_header(file: Path, hidden: set[str]) -> Path:
    """The same table, where these columns are called by no usual name."""
    head, _, rest = file.read_text(encoding="utf-8").partition("\n")
    names = ["secret" if name in hidden else name for name in head.split(",")]
    file.write_text(f"{','.join(names)}\n{rest}", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rows.xlsx", r"Save the data as one of these\.$"),
        ("gone.csv", "--data: got"),  # and nothing of a params.yaml, which is not there yet
        ("gone.npz", "--data: got"),
        ("folder.npz", "--data: got"),
    ],
)
def test_what_is_no_file_of_data_makes_no_project(tmp_path, name, said):
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UserError, match=said):
        create_project(tmp_path / "study", tmp_path / name, DataOptions())
    assert not (tmp_path / "study").exists()


def test_nothing_of_anybody_is_overwritten(tmp_path, write):
    file = write()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for folder, said in (
        (tmp_path / "full", "which contains notes.txt, expected a new or empty folder"),
        (file, "which is a file, expected"),
    ):
        with pytest.raises(UserError, match=said):
            create_project(folder, file, DataOptions())
    (tmp_path / "namesake").mkdir()
    (tmp_path / "namesake" / file.name).write_text("mine")
    with pytest.raises(UserError, match=r"which contains visits\.csv"):
        create_project(tmp_path / "namesake", file, DataOptions())
    assert (tmp_path / "namesake" / file.name).read_text() == "mine"
    create_project(tmp_path / "study", file, DataOptions())
    with pytest.raises(UserError, match=r"which is a project already"):
        create_project(tmp_path / "study", None, DataOptions())
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_what_cannot_be_ended_leaves_nothing(tmp_path, write, monkeypatch):
    def fails(root):
        raise OSError("the disk is full")

    monkeypatch.setattr("flows.init_project.create_project.init_repositories", fails)
    file = write()
    with pytest.raises(OSError, match="the disk is full"):
        create_project(tmp_path / "study", file, DataOptions())
    assert not (tmp_path / "study").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="the disk is full"):
        create_project(tmp_path / "empty", file, DataOptions())
    assert list((tmp_path / "empty").iterdir()) == []


def test_pictures_with_channels_first_are_told_apart(tmp_path, save):
    file = save(x=np.zeros((ROWS, 3, 32, 32), np.uint8))
    with pytest.raises(UserError, match=r"mine\.npz: x: got rows of shape \(3, 32, 32\), expected images as height"):
        create_project(tmp_path / "study", file, DataOptions())


@pytest.fixture
def pictures(tmp_path):
    """Write pictures of these names and this size; those of cats are dark."""

    def build(*folders: str, size: tuple[int, int] = (24, 30)) -> Path:
        for place in folders:
            (tmp_path / "pics" / place).mkdir(parents=True)
            for at in range(6):
                grey = at + 200 * (not place.endswith("cat"))
                Image.new("L", size, grey).save(tmp_path / "pics" / place / f"{at}.png")
        return tmp_path / "pics"

    return build


def test_a_folder_of_pictures_becomes_a_project_whose_silos_are_the_domains(tmp_path, pictures):
    base = pictures("north/cat", "north/dog", "south/cat", "south/dog")
    (base / ".cache").mkdir()
    made = create_project(tmp_path / "study", base, DataOptions())
    assert made["copied"] == "pics"
    assert made["read"] == {"rows": 24, "shape": [24, 24, 3], "classes": 2, "clients": 2}
    assert made["guessed"][-1] == "each image is resized to 24 x 24 pixels"
    assert not (tmp_path / "study" / "pics" / ".cache").exists()
    params = params_of(made)
    assert params.data.source.model_dump(exclude_defaults=True) == {"kind": "folder", "path": "pics", "size": 24}
    assert (params.data.scheme[0].column, params.model.kind) == ("domain", "cnn")
    project = Project.open(root=tmp_path / "study")
    assert make(project)["clients"] == 2
    assert training_setup(project, 0).network.init(server_stream(0, 0, "init"))


@pytest.mark.parametrize("folders", [("cat", "dog"), ("train/cat", "train/dog", "test/cat", "test/dog")])
def test_pictures_without_silos_are_dealt_if_it_is_asked_for(tmp_path, pictures, folders):
    base = pictures(*folders)
    with pytest.raises(UserError, match="pics: got no folders of silos above those of the classes, expected"):
        create_project(tmp_path / "study", base, DataOptions())
    params = params_of(create_project(tmp_path / "study", base, DataOptions(clients=2)))
    assert [step.model_dump() for step in params.data.scheme] == [{"kind": "equal", "within": None, "clients": 2}]
    assert make(Project.open(root=tmp_path / "study"))["rows"]["test"] == (12 if len(folders) == 4 else 4)


@pytest.mark.parametrize(("size", "side"), [((1, 1), 8), ((300, 900), 64), ((33, 40), 33)])
def test_the_size_of_pictures_is_guessed_within_what_a_small_network_takes(tmp_path, pictures, size, side):
    made = create_project(tmp_path / "study", pictures("a/cat", "a/dog", size=size), DataOptions())
    assert params_of(made).data.source.size == side


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (DataOptions(label="cat"), "--label: got cat, expected no column"),
        (DataOptions(client="north"), "--client: got north, expected no column"),
        (DataOptions(task="regression"), "--task: got regression, expected classification"),
    ],
)
def test_options_for_columns_are_refused_for_pictures(tmp_path, pictures, asked, said):
    with pytest.raises(UserError, match=said):
        create_project(tmp_path / "study", pictures("a/cat"), asked)
    assert not (tmp_path / "study").exists()


def test_a_project_inside_of_its_pictures_is_refused_and_one_around_them_copies_nothing(
    tmp_path, pictures, monkeypatch
):
    monkeypatch.chdir(pictures("a/cat", "a/dog"))
    with pytest.raises(UserError, match="DIR: got study, expected a folder outside of the images in"):
        create_project(Path("study"), Path(), DataOptions())
    monkeypatch.chdir(tmp_path)
    assert create_project(Path(), Path("pics"), DataOptions())["copied"] is None


def test_a_repetition_reads_the_corrected_copy_and_keeps_each_earlier_params(tmp_path, write):
    file, study = write(), tmp_path / "study"
    create_project(study, file, DataOptions())
    assert create_project(study, file, DataOptions(), force=True)["own_copy"] is None
    corrected = "\n".join((study / file.name).read_text().splitlines()[:-6])
    (study / file.name).write_text(corrected)
    kept = []
    for mine in ("# first", "# second", "# third"):
        with (study / "params.yaml").open("a") as params:
            params.write(mine)
        made = create_project(study, file, DataOptions(), force=True)
        assert (study / made["replaced"]).read_text().endswith(mine)
        kept.append(made["replaced"])
    assert kept == ["params.yaml.old", "params.yaml.old.2", "params.yaml.old.3"]
    assert (study / file.name).read_text() == corrected
    assert (made["copied"], made["own_copy"], made["read"]["rows"]) == (None, "visits.csv", ROWS - 6)


def test_a_repetition_reads_the_projects_own_pictures(tmp_path, pictures):
    base, study = pictures("a/cat", "a/dog"), tmp_path / "study"
    create_project(study, base, DataOptions())
    assert create_project(study, base, DataOptions(), force=True)["own_copy"] is None
    (study / "pics" / "a" / "cat" / "0.png").unlink()
    made = create_project(study, base, DataOptions(), force=True)
    assert (made["own_copy"], made["read"]["rows"]) == ("pics", 11)


def test_pictures_of_floats_are_standardised(tmp_path, save):
    x = 1000 * np.random.default_rng(0).random((ROWS, 8, 8))
    model = params_of(create_project(tmp_path / "study", save(x=x), DataOptions())).model
    assert (model.kind, model.inputs) == ("cnn", "standardise")

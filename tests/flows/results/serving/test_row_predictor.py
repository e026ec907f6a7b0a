"""Each row of a file is predicted for its own client, and a row that cannot be is named, or left out if the user says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from flows.project.project import Project
from flows.results.serving import predict_file as module
from flows.results.serving.open_model import OpenModel
from flows.results.serving.predict_file import predict_file
from flows.results.serving.row_predictor import RowPredictor
from models.networks.mlp import MLP
from models.networks.network_factory import to_json
from models.prng import server_stream
from models.served_model import ServedModel, named_tensors
from silos.errors import UserError
from silos.privacy.owner_file import OWNER_FILE
from silos.storage.partition_store import open_client
from tasks.tracking.raw_columns import input_columns, reading_rules

SITES = ("north", "south")
LINES = ["site,id,age,ward,outcome"] + [
    f"{site},{site}-{row},{20 + 10 * at + row},{('eye', 'day')[row % 2]},{('ill', 'well')[row % 2]}"
    for at, site in enumerate(SITES)
    for row in range(24)
]
SOURCE = "kind: table, path: own.csv, label: outcome, client: site, drop: [id]"
GOOD = ["north,n1,30,eye,ill", "south,s1,40,day,well", "north,n2,50,day,ill"]


class Table:
    """A project with a table, and a model of each client or of all that is opened as its champion."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, **changed: Any) -> None:
        self.root, self.patch = root, patch
        (root / "own.csv").write_text("\n".join(LINES) + "\n")
        self.of_rule("refuse", **changed)

    def of_rule(self, missing: str, features: str = "", **changed: Any) -> "Table":
        """Take this rule for missing values, features that params declare, and a card with these changes."""
        overrides = [
            "data.name=own",
            f"data.source={{{SOURCE}, missing: {missing}}}",
            "data.scheme=[{kind: column, column: client}]",
            "data.split={test: .25, validation: 0}",
            f"data.features=[{features}]",
        ]
        self.project = Project.open(overrides, self.root, derived=True)
        params, manifest = self.project.params.data, self.project.silos.manifest
        network = MLP(manifest.shape[0], (), 2)
        fresh = network.init(server_stream(0, 0, "init"))
        shared = {name: tensor / 50 for name, tensor in fresh.items()}  # else every probability is 0 or 1
        card = {"method": "FedAvg", "network": to_json(network), "task": "classification", "classes": ["ill", "well"]}
        card |= {"dtype": "float32", "columns": input_columns(manifest, params), "reading": reading_rules(params)}
        card |= {"personal": False, "clients": [], "context": [], "shape": [*manifest.shape]}
        card |= {"inputs": None, "targets": None, "statistics": None} | changed
        each = {name: torch.stack([tensor, -tensor]) for name, tensor in shared.items()}
        tensors = named_tensors({}, each) if card["personal"] else named_tensors(shared, {})
        self.opened = OpenModel("the model", "fedavg", None, None, ServedModel(card, tensors))
        self.patch.setattr(module, "open_model", lambda *_: self.opened)
        return self

    def predict(self, lines: list[str], client: str | None = None, header: str = LINES[0], **options: Any) -> Any:
        """The answer, and the rows that were written."""
        (self.root / "new.csv").write_text("\n".join([header, *lines]) + "\n")
        answer = predict_file(self.project, "new.csv", str(self.root / "labels.csv"), client, "champion", **options)
        return answer, pd.read_csv(self.root / "labels.csv")


@pytest.fixture
def table(project: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(project, monkeypatch)


PERSONAL = {"personal": True, "clients": [*SITES], "method": "LocalOnly"}


def test_each_row_of_a_file_is_predicted_by_the_model_of_its_own_client(table: Table) -> None:
    table.of_rule("refuse", **PERSONAL)
    answer, rows = table.predict(GOOD)
    assert answer["clients"] == {"north": 2, "south": 1}
    for site in SITES:
        mine = [line for line in GOOD if line.startswith(site)]
        _, alone = table.predict(mine, client=site)
        _, unnamed = table.predict([line.partition(",")[2] for line in mine], site, LINES[0].partition(",")[2])
        expected = rows[rows["site"] == site].reset_index(drop=True).drop(columns="row")
        pd.testing.assert_frame_equal(alone.drop(columns="row"), expected)
        pd.testing.assert_frame_equal(unnamed.drop(columns="row"), expected.drop(columns="site"))
    assert rows["probability/ill"].iloc[0] != pytest.approx(rows["probability/ill"].iloc[1])


class Echo(OpenModel):
    """A model that answers with what it is given of the rows' client."""

    def predict(self, rows: Any, client: str = "", statistics: Any = (), made_as: str = "") -> pd.DataFrame:
        return pd.DataFrame({"client": client, "statistics": statistics, "age": rows["age"].to_numpy()})


def test_each_row_is_predicted_with_the_statistics_of_its_own_client(table: Table) -> None:
    table.of_rule("refuse", statistics={"length": 1})
    predictor = RowPredictor(table.project, Echo(**vars(table.opened)), "--client")
    rows = pd.DataFrame({"age": [1.0, 2.0, 3.0], "ward": "eye"})

    def params_of(client: str | None) -> dict[str, Any]:
        return {"statistics": f"of {client}"}

    found = predictor.predict(rows, ["south", "north", "south"], params_of)
    assert found["statistics"].tolist() == ["of south", "of north", "of south"]
    assert found["age"].tolist() == [1.0, 2.0, 3.0]
    for unknown, named in (("mars", "mars"), (None, "none")):
        with pytest.raises(ValueError, match=f"client: got {named}, expected a client of data/, since"):
            predictor.predict(rows, [unknown] * 3, params_of)
    served = RowPredictor(table.project, predictor.opened, "params.client", of_data=False)
    assert served.predict(rows, ["mars"] * 3, params_of)["statistics"].tolist() == ["of mars"] * 3


def test_a_column_that_is_a_feature_names_no_client(table: Table) -> None:
    assert RowPredictor(table.project, table.opened, "--client").client_column == "site"
    site = {"name": "site", "kind": "text", "values": [*SITES], "missing": "refuse"}
    table.of_rule("refuse", columns=[*table.opened.card["columns"], site])
    assert RowPredictor(table.project, table.opened, "--client").client_column is None


@pytest.mark.parametrize(
    ("line", "client", "message"),
    [
        (GOOD[1], "north", "--client: got north, expected south, which the column 'site' names in row 1. Leave out"),
        (
            "mars,m1,40,day,well",
            None,
            "site: got 'mars' in row 1, expected one of north, south, since the model has a model",
        ),
        (
            "North,m1,40,day,well",
            None,
            r"since the model has a model for each client\. Did you mean north\? Correct the client, or drop the row",
        ),
        (
            None,
            "sout",
            "--client: got sout, expected one of north, south, .* Did you mean south. Name the client whose",
        ),
        (",x1,40,day,well", None, "site: got no client in row 1, expected one of north, south, since the model has"),
    ],
)
def test_another_client_than_the_rows_own_or_an_unknown_one_is_refused(
    table: Table, line: str | None, client: str | None, message: str
) -> None:
    table.of_rule("refuse", **PERSONAL)
    with pytest.raises(UserError, match=message):
        table.predict([line or ",x1,40,day,well"], client)


def test_a_model_for_all_answers_for_a_client_that_took_no_part(table: Table) -> None:
    answer, _ = table.predict(["mars,m1,40,day,well"])
    assert (answer["rows"], answer["clients"]) == (1, {"mars": 1})


def test_an_unknown_client_of_a_model_for_all_is_named_with_the_nearest_known_one(table: Table) -> None:
    answer, _ = table.predict(["nrth,n1,30,eye,ill", *GOOD, "nrth,n1,30,eye,ill"])
    assert answer["unknown_clients"] == {"nrth": {"rows": 2, "hint": "Did you mean north?"}}
    assert table.predict(GOOD)[0]["unknown_clients"] == {}


def test_the_answer_says_which_missing_values_were_filled_in_with_what(table: Table) -> None:
    table.of_rule("{fill: mean}")
    answer, _ = table.predict([*GOOD, "south,x,,eye,ill", "south,x,,eye,ill", "north,x,,eye,ill"])
    found = [(each["column"], each["client"], each["rows"]) for each in answer["filled_in"]]
    assert found == [("age", "north", 1), ("age", "south", 2)]
    assert answer["filled_in"][1]["value"] - answer["filled_in"][0]["value"] > 5
    answer, _ = table.of_rule("{fill: 7}").predict(["mars,x,,eye,ill", GOOD[0]])
    assert answer["filled_in"] == [{"column": "age", "client": None, "rows": 1, "value": 7.0}]
    assert table.of_rule("drop_rows").predict(["north,x,,eye,ill", GOOD[0]])[0]["filled_in"] == []


def test_a_missing_value_is_the_mean_of_the_rows_own_client_as_in_training(table: Table) -> None:
    table.of_rule("{fill: mean}")
    manifest, silos = table.project.silos.manifest, table.project.silos
    at = [feature.name for feature in manifest.features].index("age")
    means = {site: open_client(Path(silos.folder), manifest.client(site), "train")[0][:, at].mean() for site in SITES}
    assert means["south"] - means["north"] > 5
    _, filled = table.predict([f"{site},x,,eye,ill" for site in SITES])
    _, given = table.predict([f"{site},x,{mean},eye,ill" for site, mean in means.items()])
    assert abs(given["probability"].diff().iloc[1]) > 0.01
    np.testing.assert_allclose(filled["probability"], given["probability"], rtol=1e-6)
    for line, header, message in (
        (
            "mars,x,,eye,ill",
            LINES[0],
            "age: got no value in row 1, expected one, since data/ has no rows of mars, whose mean would fill it in. "
            "Clients are north, south. Correct the client, fill in a value, or drop the row.",
        ),
        (
            "nrth,x,,eye,ill",
            LINES[0],
            "since data/ has no rows of nrth, whose mean would fill it in. Did you mean north",
        ),
        (
            "x,,eye",
            "id,age,ward",
            "expected one, since the row's client, whose mean fills it in, is not known. Name the client",
        ),
    ):
        with pytest.raises(UserError, match=message):
            table.predict([line], header=header)
    assert len(table.predict(["x,,eye"], "south", "id,age,ward")[1]) == 1


@pytest.mark.parametrize("known", [0, 1, 9])
def test_no_mean_of_few_rows_fills_in_a_value(known: int, table: Table) -> None:
    """Once, the only value of a silo was printed as its mean, whatever its owner allowed."""
    cells = [line.split(",") for line in LINES]
    south = [row for row in cells if row[0] == "south"]
    for row in south[known:]:
        row[2] = ""
    (table.root / "own.csv").write_text("\n".join(map(",".join, cells)) + "\n")
    table.of_rule("{fill: mean}")
    message = (
        "age: got no value in row 1, expected one, since the owner of south keeps its means, or few of its rows have"
    )
    with pytest.raises(UserError, match=message):
        table.predict(["south,x,,eye,ill"])
    assert len(table.predict(["north,x,,eye,ill"])[1]) == 1


@pytest.mark.parametrize("allowed", ["own_models: false", "commands: [run]\nown_models: true", "own_models: true"])
def test_an_owner_decides_whether_means_fill_in_values(allowed: str, table: Table) -> None:
    table.of_rule("{fill: mean}")
    store = table.project.store.client_folder
    store.mkdir(parents=True)
    (store / OWNER_FILE).write_text(f"data: {{source: {{kind: table, path: own.csv}}}}\n{allowed}\n")
    if allowed == "own_models: true":
        assert table.predict(["south,x,,eye,ill"])[0]["filled_in"][0]["client"] == "south"
        return
    with pytest.raises(UserError, match="the owner of south keeps its means"):
        table.predict(["south,x,,eye,ill"])


def test_the_data_say_which_means_fill_in_values_and_not_the_model(table: Table) -> None:
    """A card that was changed to `mean` once gave the means of columns without missing values."""
    table.of_rule("refuse")
    columns = table.opened.served.card["columns"]
    table.of_rule(
        "refuse", columns=[{**each, "missing": "mean"} if each["kind"] != "text" else each for each in columns]
    )
    with pytest.raises(UserError, match="age: got no value in row 1"):
        table.predict(["south,x,,eye,ill"])


def test_a_row_that_training_would_have_dropped_is_left_out_and_named(table: Table) -> None:
    lacking = [GOOD[0], "south,s1,,day,well", "north,n2,50,,ill", GOOD[1]]
    with pytest.raises(
        UserError, match=r"new\.csv: age: got no value in row 2, expected one, as in all rows that the .* 1 more"
    ):
        table.predict(lacking)
    answer, rows = table.of_rule("drop_rows").predict(lacking)
    assert rows["row"].tolist() == [1, 4]
    assert [(each["row"], each["reason"].partition(",")[0]) for each in answer["skipped"]] == [
        (2, "age: got no value in row 2"),
        (3, "ward: got no value in row 3"),
    ]
    with pytest.raises(UserError, match="age: got 'old' in row 1, expected a finite float32 number"):
        table.predict(["north,n1,old,eye,ill", *lacking])
    table.of_rule("drop_rows", features="{name: age, missing: refuse}")
    with pytest.raises(
        UserError, match=r"age: got no value in row 2, expected one, as in all rows .* drop the row\. --skip"
    ):
        table.predict(lacking)
    table.of_rule("drop_rows")
    with pytest.raises(UserError, match=r"got no row that can be predicted\. age: got no value in row 1"):
        table.predict(["north,n1,,eye,ill"])


def test_bad_rows_are_skipped_and_listed_and_the_others_keep_their_numbers_and_predictions(table: Table) -> None:
    table.of_rule("refuse", **PERSONAL)
    bad = ["north,n3,old,eye,ill", "south,s2,40", "mars,m1,40,eye,ill", "north,n4,,eye,ill", "south,s3,40,lung,ill"]
    mixed = [bad[0], GOOD[0], bad[1], bad[2], GOOD[1], bad[3], GOOD[2], bad[4]]
    with pytest.raises(
        UserError, match=r"got 3 fields in row 3 \(without the header and blank lines\), expected 5 as in"
    ):
        table.predict(mixed)
    answer, rows = table.predict(mixed, skip_bad_rows=True)
    _, expected = table.predict(GOOD)
    assert rows["row"].tolist() == [2, 5, 7]
    pd.testing.assert_frame_equal(rows.drop(columns="row"), expected.drop(columns="row"))
    assert [each["row"] for each in answer["skipped"]] == [1, 3, 4, 6, 8]
    for each, said in zip(
        answer["skipped"],
        (
            "age: got 'old' in row 1",
            "got 3 fields in row 3",
            "site: got 'mars' in row 4",
            "age: got no",
            "ward: got 'lung'",
        ),
        strict=True,
    ):
        assert each["reason"].startswith(said)
    assert table.predict(GOOD, skip_bad_rows=True)[0]["skipped"] == []


def test_skipped_rows_are_counted_neither_by_client_nor_as_filled_in(table: Table) -> None:
    table.of_rule("{fill: 7}")
    bad = ["north,n3,old,eye,ill", "mars,m1,40,lung,ill", "south,s9,,lung,ill"]
    answer, _ = table.predict([GOOD[0], *bad, "mars,m2,,eye,ill"], skip_bad_rows=True)
    assert answer["clients"] == {"north": 1, "mars": 1}
    assert {name: each["rows"] for name, each in answer["unknown_clients"].items()} == {"mars": 1}
    assert [(each["column"], each["rows"]) for each in answer["filled_in"]] == [("age", 1)]


def test_columns_that_are_no_features_are_copied_and_others_if_the_user_names_them(table: Table) -> None:
    answer, rows = table.predict(["north,007,30,eye,NA"])
    assert list(rows)[:5] == ["row", "site", "id", "outcome", "label"]
    assert (self_written := (table.root / "labels.csv").read_text()).splitlines()[1].startswith("1,north,007,NA,"), (
        self_written
    )
    assert answer["columns"] == list(rows)
    header = "site,row,age,ward,label"
    with pytest.raises(UserError, match=r"columns: got 'row', 'label', expected columns of the model, .* --keep NAME"):
        table.predict(["north,9,30,eye,x"], header=header)
    _, rows = table.predict(["north,9,30,eye,x"], header=header, keep=["age", "row", "label"])
    assert list(rows)[:6] == ["row", "site", "input/row", "age", "input/label", "label"]
    assert rows.iloc[0][["row", "input/row", "age", "input/label"]].tolist() == [1, 9, 30, "x"]
    with pytest.raises(UserError, match=r"--keep: got 'Id', expected a column of new\.csv: 'site', 'id', 'age'"):
        table.predict(GOOD, keep=["Id"])


def test_one_row_with_the_text_na_is_that_category_and_not_a_missing_value(project: Path, monkeypatch: Any) -> None:
    lines = [line.replace("eye", "NA") for line in LINES]
    monkeypatch.setattr(f"{__name__}.LINES", lines)
    table = Table(project, monkeypatch)
    assert table.opened.card["columns"][1]["values"] == ["NA", "day"]
    _, alone = table.predict(["north,n1,30,NA,ill"], header=lines[0])
    _, beside = table.predict(["north,n1,30,NA,ill", "north,n1,30,day,ill"], header=lines[0])
    assert alone["probability"].iloc[0] == beside["probability"].iloc[0]


def test_predictions_through_a_link_do_not_replace_the_rows(table: Table) -> None:
    for name in ("labels.csv", "hard.csv"):
        (table.root / name).unlink(missing_ok=True)
    (table.root / "new.csv").write_text("\n".join([LINES[0], *GOOD]) + "\n")
    (table.root / "labels.csv").symlink_to("new.csv")
    (table.root / "hard.csv").hardlink_to(table.root / "new.csv")
    for name in ("labels.csv", "hard.csv"):
        with pytest.raises(UserError, match="which holds the rows of INPUT, expected another file"):
            predict_file(table.project, "new.csv", str(table.root / name), None, "champion")
    assert (table.root / "new.csv").read_text().splitlines()[1:] == GOOD


def test_the_named_client_of_rows_without_their_own_is_opened_and_an_unknown_one_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    table.of_rule("refuse", **PERSONAL)
    monkeypatch.setattr(module, "open_model", lambda *given: asked.append(given[2]) or table.opened)
    table.predict([",x1,40,day,well"], "south")
    assert asked == [["south"]]
    table.of_rule("refuse", statistics=[1.0])
    with pytest.raises(UserError, match=r"^--client: got Nowhere, expected a client of data/, since the model also"):
        table.predict(["x,40,eye"], "Nowhere", "id,age,ward")


def test_lists_in_a_column_that_is_no_feature_are_not_copied(table: Table) -> None:
    frame = pd.DataFrame({"id": [[1], [2, 3]], "site": ["north", "south"], "age": [30.0, 40.0], "ward": ["eye", "day"]})
    frame.to_parquet(table.root / "new.parquet")
    asked: Any = (table.project, "new.parquet", str(table.root / "labels.csv"), None, "champion")
    assert "id" not in predict_file(*asked)["columns"]
    with pytest.raises(UserError, match=r"--keep: got 'id' with values of type list<.*>, expected text or numbers"):
        predict_file(*asked, keep=["id"])

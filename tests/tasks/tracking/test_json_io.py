"""A kill at any moment leaves the old file or the new one, and no output replaces a file of the project's own."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from silos.errors import UserError
from tasks.tracking.json_io import output_file, read_json, write_bytes, write_json, write_records

ROOT = Path(__file__).parents[3]
DYING_WRITER = """
import os, sys
from pathlib import Path
from tasks.tracking import json_io
# the process is gone at the named call, as if it had been killed there
owner, name = (Path, "replace") if sys.argv[2] == "replace" else (os, sys.argv[2])
setattr(owner, name, lambda *_: os._exit(9))
json_io.write_bytes(Path(sys.argv[1]), b"new" * 1000)
"""


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_writer_that_dies_before_the_end_leaves_the_old_file(tmp_path, moment):
    path = tmp_path / "state"
    write_bytes(path, b"old")
    command = [sys.executable, "-c", DYING_WRITER, str(path), moment]
    died = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert died.returncode == 9
    assert path.read_bytes() == b"old"
    write_bytes(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"round": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"round": object()})
    with pytest.raises(TypeError):
        write_bytes(tmp_path / "a.json", "no bytes")
    assert read_json(tmp_path / "a.json") == {"round": 1}


def test_what_is_not_a_number_is_null_in_json(tmp_path):
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"a": float("nan"), "b": [1.5, float("inf"), (-float("inf"), {"c": float("nan")})], "d": 0})
    text = path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [1.5, None, [None, {"c": None}]], "d": 0}


def test_the_same_content_is_the_same_file_whatever_the_order_of_keys(tmp_path):
    write_json(tmp_path / "a", {"x": 1, "y": {"b": 2, "a": 3}})
    write_json(tmp_path / "b", {"y": {"a": 3, "b": 2}, "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_is_not_there_reads_as_none(tmp_path):
    assert read_json(tmp_path / "nothing.json") is None


def test_records_are_written_one_a_line_and_read_as_they_were(tmp_path: Path) -> None:
    content = {"b": {"cpu": {"iid": [{"y": 1, "x": [1, 2]}, {"x": None}], "none": []}}, "a": {"whole": {"z": math.nan}}}
    write_records(tmp_path / "records.json", content)
    assert (tmp_path / "records.json").read_text().splitlines() == [
        "{",
        ' "a": {"whole": {"z": null}},',
        ' "b": {',
        '  "cpu": {',
        '   "iid": [',
        '    {"x": [1, 2], "y": 1},',
        '    {"x": null}',
        "   ],",
        '   "none": []',
        "  }",
        " }",
        "}",
    ]
    assert read_json(tmp_path / "records.json") == {**content, "a": {"whole": {"z": None}}}


@pytest.mark.parametrize(
    "output",
    [
        *("data/own.csv", "runs/registry/journal.json", "private/../private/x", ".git/config", "link/x", "params.yaml"),
        *("Runs/x.csv", "PARAMS.YAML", ".Git/config"),  # not there yet
    ],
)
def test_no_output_is_written_where_the_projects_tools_write(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    with pytest.raises(
        UserError, match=r"--output: got '.*', which is .*the project's own .*, expected a file elsewhere"
    ):
        output_file(tmp_path, output, None)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("D/x.csv", "in the project's own data"),
        ("data/data", "in the project's own data"),
        ("P.yaml", "the project's own params.yaml"),
        ("hard.yaml", "the project's own params.yaml"),
        ("Params.yaml", "the project's own params.yaml"),
    ],
)
def test_an_own_file_or_folder_is_found_by_another_name_of_it(output, shown, tmp_path, monkeypatch):
    """A disk that ignores case has such names, which `resolve` does not know for the same; here they are links."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "D").symlink_to("data")
    (tmp_path / "params.yaml").touch()
    (tmp_path / "P.yaml").symlink_to("params.yaml")
    (tmp_path / "hard.yaml").hardlink_to("params.yaml")
    monkeypatch.setattr(Path, "resolve", Path.absolute)
    with pytest.raises(UserError, match=f"which is {shown}"):
        output_file(tmp_path, output, None)


@pytest.mark.parametrize("output", ["own.csv", "out/own.csv", "out/data/own.csv", "database.csv", "../own.csv"])
def test_an_output_elsewhere_and_in_an_allowed_folder_is_a_file_to_write(output, tmp_path, monkeypatch):
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    assert output_file(root, output, "rows.csv") == (root / output).resolve()
    allowed = Path("runs") / "predictions"
    assert output_file(root, f"{allowed}/a.csv", "rows.csv", allowed) == root / allowed / "a.csv"


@pytest.mark.parametrize("output", ["rows.csv", "Rows.csv", "link.csv", "hard.csv"])
def test_no_output_replaces_the_projects_rows(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n")
    (tmp_path / "link.csv").symlink_to("rows.csv")
    (tmp_path / "hard.csv").hardlink_to("rows.csv")
    with pytest.raises(UserError, match=r"holds rows of data\.source, expected another file"):
        output_file(tmp_path, output, "rows.csv")


def test_no_output_is_written_among_the_projects_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"holds rows of data\.source"):
        output_file(tmp_path, "pictures/north/cat/model.onnx", "pictures")


def test_a_key_may_have_any_value_and_must_be_there(tmp_path):
    content = {"round": 0, "run": None, "names": []}
    write_json(tmp_path / "file", content)
    assert read_json(tmp_path / "file", keys=content) == content
    with pytest.raises(UserError, match="got no metrics, expected it"):
        read_json(tmp_path / "file", keys=("round", "metrics"))


def test_a_list_is_written_a_record_a_line_only_if_all_of_it_are_records(tmp_path):
    content = {"mixed": [{"a": 1}, 2], "records": [{"a": 1}, {"b": 2}]}
    write_records(tmp_path / "file", content)
    lines = (tmp_path / "file").read_text().splitlines()
    assert lines == ["{", ' "mixed": [{"a": 1}, 2],', ' "records": [', '  {"a": 1},', '  {"b": 2}', " ]", "}"]
    assert json.loads((tmp_path / "file").read_text()) == content


def test_an_output_may_be_in_the_allowed_folder_and_in_no_other_of_the_projects_own(tmp_path):
    allowed = tmp_path / "runs" / "labels"
    assert output_file(tmp_path, str(allowed / "new.csv"), None, allowed) == (allowed / "new.csv").resolve()
    for other in ("data/new.csv", "runs/new.csv", "params.yaml"):
        with pytest.raises(UserError, match="project's own"):
            output_file(tmp_path, str(tmp_path / other), None, allowed)

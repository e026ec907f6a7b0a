"""The house keeps its shape: a file can be found by its name."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ROOMS = ("publications", "benchmarks", "flows", "tasks", "models", "silos")
MOST = 18  # files of one folder that a reader still takes in at a glance


def modules() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *ROOMS], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    paths = (Path(line) for line in listed.stdout.splitlines() if line.endswith(".py"))
    return [p for p in paths if p.name != "__init__.py" and (CHECKOUT / p).exists()]


def test_no_file_is_called_as_a_module_of_pythons_library_or_as_another_file():
    """Prefect loads a flow by its path, with its folder first in the search: such a name would hide the other."""
    names = Counter(path.stem for path in modules())
    assert not names.keys() & sys.stdlib_module_names
    assert [name for name, count in names.items() if count > 1] == []


def test_no_folder_is_crowded():
    folders = Counter(
        str(path.parent) for path in modules() if path.parent != Path("flows", "methods")
    )  # a file a method
    assert {folder: count for folder, count in folders.items() if count > MOST} == {}


def test_every_folder_with_code_is_a_package():
    """Import-linter, setuptools, pkgutil and the test of the map see no other: what is inside is held to nothing."""
    assert [
        str(folder) for folder in {p.parent for p in modules()} if not (CHECKOUT / folder / "__init__.py").exists()
    ] == []


def test_files_that_run_first_because_they_take_long_are_there():
    conftest = (CHECKOUT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (named,) = re.findall(r"^FIRST = (.*?)}$", conftest, re.MULTILINE | re.DOTALL)
    there = {part for path in (CHECKOUT / "tests").rglob("test_*.py") for part in path.relative_to(CHECKOUT).parts}
    assert set(re.findall(r'"(.*?)"', named)) <= there


def test_every_test_of_a_room_lies_where_its_module_does():
    """Or beside it, under the name of a sentence that is about several."""
    rooms = {str(path.parent) for path in modules()}
    listed = (p.relative_to(CHECKOUT / "tests").parent for p in (CHECKOUT / "tests").rglob("test_*.py"))
    placed = {str(folder) for folder in listed if folder.parts and folder.parts[0] in ROOMS}
    assert placed <= rooms

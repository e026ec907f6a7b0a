"""`siloflow show` shows the rows that the data version says, and no others."""

from pathlib import Path

import pytest

from flows.answers import show
from flows.experiment.project import Project
from silos.errors import UserError


@pytest.mark.parametrize("late", [False, True])
def test_rows_that_are_no_more_what_the_version_says_are_not_shown(project, late, monkeypatch):
    opened = Project.open(root=project, derived=True)
    file = Path(opened.silos.folder) / "c03.safetensors"

    def spoil():
        held = file.read_bytes()
        file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))

    if late:  # while they are read
        look = show.examples
        monkeypatch.setattr(show, "examples", lambda *asked: (look(*asked), spoil())[0])
    else:
        spoil()
    with pytest.raises(UserError, match=r"c03\.safetensors, with the rows of client c03, is not what data version"):
        show.show(opened)
    assert not (opened.runs / "show-digits.png").exists()

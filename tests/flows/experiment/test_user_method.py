"""What is said of an error that a user's own page raised."""

import sys

import pytest

from flows.experiment.user_method import error_of_page, load


@pytest.mark.parametrize(
    ("notes", "where"),
    [
        ([], " (mine.py, line 2)"),
        (["in train of client a (mine.py, line 2)", "more"], " in train of client a (mine.py, line 2)"),
    ],
)
def test_the_line_is_named_and_inside_a_step_what_the_step_says(notes, where, tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text("def fail():\n    return 1 / 0\n")
    page = load("mine", path)
    monkeypatch.setitem(sys.modules, page.__name__, page)
    with pytest.raises(ZeroDivisionError) as raised:
        page.fail()
    for note in notes:
        raised.value.add_note(note)
    said = error_of_page(raised.value, "mine", str(path), page.__name__)
    assert str(said).startswith(f"mine failed: ZeroDivisionError: division by zero{where}; mend ")

"""Plugin files are loaded by their content, and what is said of an error in one."""

import pytest

from flows.experiment.plugin_loader import load, plugin_error
from flows.plugins import METHODS, METRICS
from silos.errors import UserError

METRIC = (
    "from flows.plugins import register_metric\n\n\n@register_metric({name!r})\ndef f(logits, y):\n    return {value}\n"
)


@pytest.mark.parametrize(
    ("notes", "where"),
    [
        ([], " (mine.py, line 6)"),
        (["in train of client a (mine.py, line 6)", "more"], " in train of client a (mine.py, line 6)"),
    ],
)
@pytest.mark.parametrize("has_method", [True, False])
def test_the_line_is_named_and_inside_a_step_what_the_step_says(notes, where, has_method, tmp_path):
    path = str(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text(METRIC.format(name="mine", value="1 / 0"))
    entry = load(tmp_path, ["mine.py"]).of(METRICS)["mine"]
    with pytest.raises(ZeroDivisionError) as raised:
        entry.target(None, None)
    for note in notes:
        raised.value.add_note(note)
    said = plugin_error(raised.value, "fedavg", {path: "mine.py"}, path if has_method else "")
    assert str(said).startswith(f"fedavg failed: ZeroDivisionError: division by zero{where}; mend mine.py, ")


def test_the_file_that_raised_is_named_and_not_that_of_the_method(tmp_path):
    method, metric = str(tmp_path / "method.py"), str(tmp_path / "metric.py")
    (tmp_path / "metric.py").write_text(METRIC.format(name="mine", value="1 / 0"))
    entry = load(tmp_path, ["metric.py"]).of(METRICS)["mine"]
    with pytest.raises(ZeroDivisionError) as raised:
        entry.target(None, None)
    said = plugin_error(raised.value, "own", {method: "method.py", metric: "metric.py"}, method)
    assert "(metric.py, line 6); mend metric.py, " in str(said)


def test_an_error_that_no_plugin_raised_is_not_said_to_be_a_plugins(tmp_path):
    path = str(tmp_path / "mine.py")
    with pytest.raises(ZeroDivisionError) as raised:
        print(1 / 0)
    assert plugin_error(raised.value, "fedavg", {path: "mine.py"}) is None


def test_a_file_is_run_once_until_its_text_changes(tmp_path, capsys):
    file = tmp_path / "mine.py"
    for value in (1, 1, 2, 1):
        file.write_text(METRIC.format(name="mine", value=value) + f"print('value {value}')\n")
        assert load(tmp_path, ["mine.py"]).of(METRICS)["mine"].target(0, 0) == value
    assert capsys.readouterr() == ("", "value 1\nvalue 2\n")


def test_what_a_project_names_is_not_known_in_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(METRIC.format(name=name, value=1))
    assert [set(load(tmp_path / name, ["mine.py"]).of(METRICS)) for name in ("one", "two")] == [{"one"}, {"two"}]
    assert load(tmp_path, []).of(METHODS) == {}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["brier", "brier"], r"plugins: got the metric 'brier' from 0\.py and from 1\.py, expected one of each name"),
        (["loss"], r"0\.py, line 4: ValueError: metric 'loss': siloflow has one of this name\. Use another name"),
        (["a b"], r"the metric 'a b' is not a plain name"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused(names, said, tmp_path):
    for at, name in enumerate(names):
        (tmp_path / f"{at}.py").write_text(METRIC.format(name=name, value=1))
    with pytest.raises(UserError, match=said):
        load(tmp_path, [f"{at}.py" for at in range(len(names))])

"""Methods are found by name; a user's own page joins without a fork."""

import pytest
import torch

from flows.core.config.load_config import load_params
from flows.core.plugin_loader import PluginFiles
from flows.methods.base import (
    Method,
    RoundReport,
    describe_method,
    find_method,
    method_names,
    method_summaries,
    start_method,
)
from flows.methods.method_settings import method_of
from silos.errors import UserError

PAGE = '''"""Half way: FedAvg that goes half of the way to the mean."""

from flows.methods import fedavg
from flows.plugins import register_method


@register_method("half_way")
class HalfWay(fedavg.FedAvg):
    """`step` is the share of the way."""

    step: float = 0.5

    def run_round(self, state, round):
        """FedAvg's round, and part of the way."""
        new, report = super().run_round(state, round)
        old, mean = state.tensors["weights"], new.tensors["weights"]
        return new.with_tensors(weights={n: w + self.step * (mean[n] - w) for n, w in old.items()}), report
'''


@pytest.mark.parametrize("name", method_names())
def test_every_page_is_one_method_with_words_and_options_that_have_defaults(name):
    cls = find_method(name)
    assert issubclass(cls, Method)
    about = describe_method(name)
    assert about["method"] == name
    assert about["model"] in ("global", "personal")
    title, _, what = about["summary"].partition(": ")
    assert title
    assert len(what) > 20
    assert cls().model_dump(mode="json") == about["options"]


def test_the_list_has_the_first_line_of_every_page_whether_it_is_imported_or_not(tmp_path):
    (tmp_path / "half.py").write_text(PAGE)
    plugins = PluginFiles(tmp_path).load(["half.py"])
    described = [describe_method(name, plugins) for name in method_names(plugins)]
    assert method_summaries(plugins) == [{key: one[key] for key in ("method", "summary")} for one in described]


def test_the_four_first_methods_are_there():
    assert {"fedavg", "fedprox", "local_only", "pooled"} <= set(method_names())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="method: got 'fedvag', expected a known method"):
        find_method("fedvag")
    with pytest.raises(UserError, match="method: got 'zzz', expected a known method"):
        find_method("zzz")


def test_a_users_own_page_joins_and_runs(tmp_path, make_problem, play):
    (tmp_path / "half_way.py").write_text(PAGE)
    plugins = PluginFiles(tmp_path).load(["half_way.py"])
    assert "half_way" in method_names(plugins)
    page = find_method("half_way", plugins)(step=0.25)
    assert describe_method("half_way", plugins)["options"] == {"step": 0.5}
    setup = make_problem({"a": 6, "b": 9})
    own, fedavg = (play(p, setup, [1]).state.tensors["weights"] for p in (page, find_method("fedavg")()))
    start = page.init(setup).tensors["weights"]
    for name in start:
        assert (own[name] - (start[name] + 0.25 * (fedavg[name] - start[name]))).abs().max() < 1e-7


def test_a_plugin_that_is_not_there_or_registers_no_method_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"params\.yaml: plugins\.0: got"):
        PluginFiles(tmp_path).load(["mine.py"])
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="method: got 'empty', expected a known method"):
        find_method("empty", PluginFiles(tmp_path).load(["empty.py"]))
    (tmp_path / "none.py").write_text("from flows.plugins import register_method\nregister_method('none')(print)\n")
    with pytest.raises(UserError, match=r"method 'none': got .*print.*, expected a class that extends Method"):
        find_method("none", PluginFiles(tmp_path).load(["none.py"]))


OPENING = (
    "from flows.methods import fedavg\nfrom flows.plugins import register_method\n"
    "@register_method('mine')\nclass Mine(fedavg.FedAvg):\n    "
)
BROKEN = {
    "a syntax error": ("x = 1\ndef f(:\n", r"mine\.py, line 2: SyntaxError: invalid syntax"),
    "wrong indents": ("if 1:\nx = 1\n", r"mine\.py, line 2: IndentationError: expected an indented block"),
    "an import that is not there": (
        "import os\nimport nonesuch\n",
        r"line 2: ModuleNotFoundError: No module named 'none",
    ),
    "an error": ("import json\n\njson.loads('{')\n", r"mine\.py, line 3: JSONDecodeError: Expecting property name"),
    "an end": ("import sys\nsys.exit(3)\n", r"mine\.py, line 2: SystemExit: 3"),
    "recursion": ("def f():\n    f()\nf()\n", r"mine\.py, line 2: RecursionError: maximum recursion depth"),
    "bytes that are no text": (b"x = '\xff'\n", r"mine\.py(, line 1)?: SyntaxError: .*'utf-8' codec can't decode byte"),
    "a null byte": ("x = 1\n\0", r"mine\.py: SyntaxError: source code string cannot contain null bytes"),
    "an option of a type that is none": (f"{OPENING}x: fedavg\n", r"mine\.py, line 4: .*Error: "),
    "an error without a message": ("raise KeyError\n", r"mine\.py, line 1: KeyError"),
    "a message of many lines": (
        "raise ValueError('a\\n' + 'b' * 9000)\n",
        r"mine\.py, line 1: ValueError: a",
    ),
    "a method that is none yet": (
        "from flows.methods.base import Method\nfrom flows.plugins import register_method\n"
        "@register_method('mine')\nclass Mine(Method): pass\n",
        r"method 'mine': got a class without init, model, run_round, expected",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_own_page_that_python_refuses_is_told_with_file_line_and_its_message(case, tmp_path):
    content, message = BROKEN[case]
    (tmp_path / "mine.py").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as told:
        find_method("mine", PluginFiles(tmp_path).load(["mine.py"]))
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("name", ["mine.txt", "folder.py", "m" * 300 + ".py", "a\0.py", ""])
def test_an_own_page_that_is_no_python_file_is_told(name, tmp_path):
    (tmp_path / "mine.txt").write_text(PAGE)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UserError, match=r"plugins\.0: (got|cannot)"):
        PluginFiles(tmp_path).load([name])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x: int\n", r"mine\.py: ValidationError: .*x .*Field required"),
        ("x: object = object()\n", r"mine\.py: PydanticSerializationError: Unable to serialize unknown type"),
    ],
)
def test_options_that_have_no_default_or_cannot_be_listed_are_told(body, message, tmp_path):
    (tmp_path / "mine.py").write_text(OPENING + body)
    with pytest.raises(UserError, match=message):
        describe_method("mine", PluginFiles(tmp_path).load(["mine.py"]))


def test_an_own_page_needs_no_words_of_its_own(tmp_path):
    (tmp_path / "mine.py").write_text(OPENING + "x: int = 1\n")
    assert describe_method("mine", PluginFiles(tmp_path).load(["mine.py"]))["summary"] == ""


def test_what_an_own_page_prints_at_import_is_not_in_the_answer(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(f"print('hello')\n{OPENING}x: int = 1\n")
    find_method("mine", PluginFiles(tmp_path).load(["mine.py"]))
    assert capsys.readouterr() == ("", "hello\n")


def test_an_own_page_that_cannot_start_is_told_with_file_line_and_message(tmp_path, make_problem):
    (tmp_path / "mine.py").write_text(OPENING + "def init(self, setup):\n        return 1 / 0\n")
    page = find_method("mine", PluginFiles(tmp_path).load(["mine.py"]))()
    with pytest.raises(UserError, match=r"mine\.py, line 6: ZeroDivisionError: division by zero"):
        start_method(page, make_problem({"a": 6}))


def test_an_own_page_whose_check_of_options_fails_is_told_with_file_and_line(project):
    check = "@pydantic.field_validator('x')\n    def check(cls, x):\n        return len(x)\n"
    (project / "mine.py").write_text(f"import pydantic\n{OPENING}x: int = 1\n    {check}")
    params = load_params(project, ["plugins=[mine.py]", "method.mine.x=3"])
    with pytest.raises(UserError, match=r"mine\.py, line 9: TypeError: object of type 'int' has no len\(\)"):
        method_of(params, "mine")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"loss/train": 1.0, "invariant/‖λ‖": 2.0}, "RoundReport: metric 'invariant/‖λ‖': got '‖', expected"),
        ({"clients//few": 1.0}, "RoundReport: metric 'clients//few': got an empty part between slashes, or one of"),
        ({"n" * 251: 1.0}, "RoundReport: metric"),
        ({"settled": True}, "'settled': got True, expected a number"),
        ({"gap": torch.tensor(1.0)}, r"'gap': got tensor\(1\.\), expected a number"),
    ],
)
def test_a_report_refuses_what_mlflow_would_not_take_with_its_name(numbers, said):
    """One such name, and MLflow would take no number of the round."""
    with pytest.raises(ValueError, match=said):
        RoundReport(numbers)


@pytest.mark.parametrize("column", ["round", "client", "dropped", "role", "test/accuracy", "validation/loss"])
def test_a_report_refuses_a_column_that_clients_csv_has_already(column):
    with pytest.raises(ValueError, match=f"'{column}': got a column that clients.csv has already"):
        RoundReport({}, {column: {"a": 1.0}})
    RoundReport({}, {"check_entropy": {"a": 1.0}, "‖λ‖": {"a": 2.0}})


def test_a_page_is_one_file_and_finds_no_module_beside_it(tmp_path):
    (tmp_path / "page_with_a_helper.py").write_text(f"import helper_beside_it\n{PAGE}")
    (tmp_path / "helper_beside_it.py").write_text("")
    with pytest.raises((UserError, ModuleNotFoundError), match="No module named 'helper_beside_it'"):
        PluginFiles(tmp_path).load(["page_with_a_helper.py"])

"""Whatever stands in params.yaml and on the command line, a command ends with an answer or a sentence.

Random files and arguments, in this process. Nothing is trained: a command that would start a flow ends there, which is the
only thing replaced.
"""

import io
import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from flows.cli import app
from flows.cli.command_session import Session
from flows.methods.base import method_names
from flows.orchestration.flow_decorator import ProjectFlow
from flows.project.make_partition import make
from flows.project.project import Project
from silos.data_params import Assignment, Change, Subsample
from silos.sources.source_params import Synthetic

OWN = (
    "from flows.methods import fedavg\nfrom flows.plugins import register_method\n"
    "@register_method('own')\nclass Own(fedavg.FedAvg):\n    x: float = 1.0\n"
)
MOST_SAID = 4000  # characters: a screen, whatever was written

# small or beyond every bound: what lies between may be meant, and would be computed
NUMBERS = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([10**12, 10**15, 2**63, 10**30, -(10**12), 10**99]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.0, 1e-320, 1e300, -1e300, float("inf"), float("nan")]),
)


def mostly(fitting: st.SearchStrategy) -> st.SearchStrategy:
    """What fits, and now and then any number."""
    return st.integers(0, 15).flatmap(lambda draw: fitting if draw else NUMBERS)


COUNT, SIZE = mostly(st.integers(1, 4)), mostly(st.sampled_from([0.1, 0.5, 1.0, 90.0]))
FITTING = COUNT | SIZE
MEANT = """
    sgd adam mlp cnn residual focal cross_entropy squared_error npz digits synthetic folder linear logistic my.npz .
    broken.py own.py nothing.py own fedavg uefl column client domain equal dirichlet quantity shards balanced
    classes_per_cluster rotation permute_pixels noise permute_labels merge_labels imbalance subsample hold_out
    fresh auto common paper authors c00 c01 0 1 ² ٣ 1_0 0x1 1e3 true null [/b] [bold] -- '' fingerprint loadings
    covariance_xy cluster_id pooled vmap sequential cuda dask processes best code local ensemble bilinear planes
"""
WORDS = st.one_of(
    st.sampled_from(MEANT.split()),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\\~"), max_size=12),
    st.sampled_from(["x" * 5000, "9" * 5000, "[" * 300]),
)
SCALARS = st.one_of(NUMBERS, WORDS, st.booleans(), st.none())
KEYS = st.one_of(
    st.sampled_from(
        ["kind", "rows", "features", "clients", "seed", "test", "words", "x", "statistics", "task", "noise"]
    ),
    WORDS,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
HOSTILE = st.sampled_from(
    [
        "{[a]: 1}",
        "? {a: b}\n: 1",
        "2026-99-99",
        "2026-01-01",
        "9" * 5000,
        "-" + "9" * 200,
        "[" * 2000,
        "{a: " * 2000,
        "0b_",
        "0x_",
        "1:59:59",
        "1" + ":59" * 300 + ".5",
        "!!python/object/apply:os.system [ls]",
        "!!int x",
        "!!binary x",
        "!!timestamp x",
        "!!set {a}",
        "&a [*a]",
        "*a",
        "<<",
        "=",
        "'",
        "\t",
        "\0",
        "%",
        "@",
        "a: b: c",
        "\ufeff",
        "\u2028",
        "1e3",
        ".inf",
        "~",
        "{<<: [1]}",
        "[&b x, *b]",
    ]
)
METHODS = st.sampled_from([*method_names(), "own", "broken", "fedavgg", "", "²"])


def paths(tree: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where there is something in a tree, itself not included."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        yield (*before, key)
        yield from paths(value, (*before, key))


RAW = yaml.safe_load((Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8"))
PATHS = st.one_of(  # a change of data ends a command early
    *[
        st.sampled_from(sorted((path for path in paths(RAW) if (path[0] == "data") == data), key=str))
        for data in (0, 0, 1)
    ]
)


@st.composite
def files(draw: Callable[..., Any]) -> bytes:
    """params.yaml with some values replaced, removed or added, and sometimes with lines that are no YAML."""
    tree = json.loads(json.dumps(RAW))
    for path in draw(st.lists(PATHS, max_size=4)):
        place = tree
        try:
            for key in path[:-1]:
                place = place[key]
            how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
            if how == "remove":
                del place[path[-1]]
            elif how == "add" and isinstance(place, dict):
                place[draw(KEYS)] = draw(VALUES)
            else:
                place[path[-1]] = draw(FITTING | VALUES)
        except (LookupError, TypeError):
            continue  # an earlier change took it away
    lines = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).split("\n")
    for _ in range(draw(st.integers(0, 2)) if draw(st.booleans()) else 0):
        at = draw(st.integers(0, len(lines) - 1))
        hostile = draw(st.one_of(HOSTILE, st.just(lines[at]), st.text(max_size=9)))
        lines[at] = draw(
            st.sampled_from([f"{lines[at]}\n{hostile}", f"{lines[at].partition(':')[0]}: {hostile}", hostile])
        )
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def typable(text: str) -> str:
    """What an operating system takes as an argument of a command."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


@st.composite
def overrides(draw: Callable[..., Any]) -> list[str]:
    """`--set` and what follows it."""
    found = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        key = ".".join(map(str, draw(st.one_of(PATHS, PATHS, PATHS, st.lists(KEYS, max_size=3)))))
        value = draw(
            st.one_of(FITTING.map(str), VALUES.map(lambda value: json.dumps(value, ensure_ascii=False)), WORDS, HOSTILE)
        )
        found += ["--set", typable(draw(st.sampled_from([f"{key}={value}"] * 5 + [key, value, ""])))]
    return found


def option(name: str, values: st.SearchStrategy) -> st.SearchStrategy:
    """An option that is there, or not."""
    return st.one_of(st.just([]), values.map(lambda value: [name, typable(str(value))]))


SEEDS = st.one_of(st.sampled_from(["0", "0,1", "0,²", "٣", "", ",", "9" * 5000, "-1", "1e3", str(2**63)]), WORDS)
BY_NAME = {
    "task": st.sampled_from(["linear", "logistic"]),
    "within": st.sampled_from([None, None, "domain"]),
    "column": st.sampled_from(["client", "domain"]),
    "centre": st.sampled_from(["middle", "opencv"]),
    "groups": st.sampled_from(["paper", "code", [["0", "1"], ["2"]]]),
    "clusters": st.one_of(
        COUNT, st.just([["0"], ["1"]]), st.lists(st.lists(st.integers(0, 10), max_size=2), max_size=3)
    ),
    "angles": st.lists(SIZE, max_size=2),
    "clip": st.booleans(),
    "common_rows": st.booleans(),
    "sd": st.one_of(SIZE, st.lists(SIZE, max_size=2)),
    "into": st.just({"both": ["0", "1"]}) | st.dictionaries(WORDS, st.lists(st.integers(0, 1), max_size=2), max_size=2),
    "classes": st.lists(st.integers(0, 1), min_size=1, max_size=2) | st.lists(WORDS, max_size=2),
    "domains": st.lists(st.sampled_from(["cluster0", "0"]) | WORDS, max_size=2),
}


def section(record: type[BaseModel]) -> st.SearchStrategy:
    """What a person may write for a step or a source of this kind: mostly what fits."""
    fields = {
        name: BY_NAME.get(name, SIZE if "float" in str(field.annotation) else COUNT)
        for name, field in record.model_fields.items()
        if name != "kind"
    }
    required = {name for name in fields if record.model_fields[name].is_required()}
    return st.fixed_dictionaries(
        {"kind": st.sampled_from(get_args(record.model_fields["kind"].annotation))}
        | {name: values for name, values in fields.items() if name in required},
        optional={name: values for name, values in fields.items() if name not in required},
    )


SOURCES = st.one_of(section(Synthetic), st.just({"kind": "npz", "path": "my.npz"}))
STEPS_THAT_FIT = st.builds(
    lambda before, first, more: [*before, first, *more],
    st.lists(section(Subsample), max_size=1) | st.just([]),
    st.one_of(*map(section, get_args(Assignment))),
    st.lists(st.one_of(*map(section, get_args(Change))), max_size=2),
)
PARTITIONS = st.builds(
    lambda source, scheme, seed: [
        "partition",
        *(["--set", f"data.source={json.dumps(source)}"] if source else []),
        *(["--set", typable(f"data.scheme={json.dumps(scheme)}")] if scheme else []),
        "--set",
        f"data.seed={seed}",
    ],
    st.none() | SOURCES,
    st.none() | STEPS_THAT_FIT,
    mostly(st.integers(0, 9)),
)
COMMANDS = st.one_of(
    st.just(["partition"]),
    st.builds(lambda *parts: ["run", *parts[0], *parts[1]], METHODS.map(lambda m: [m]), option("--seed", SEEDS)),
    st.builds(
        lambda *parts: ["compare", *parts[0], *parts[1], *parts[2]],
        st.lists(METHODS, max_size=2),
        option("--seeds", SEEDS),
        option("--reference", METHODS),
    ),
    st.builds(
        lambda cron: ["schedule", typable(cron)], st.sampled_from(["at noon", "", "* * * *", "²" * 5, "61 * * * *"])
    ),
    st.builds(lambda port: ["ui", "--mlflow-port", port], st.sampled_from(["-1", "0x", "²", "65536", "9" * 5000])),
    st.just(["show"]),
    st.just(["methods"]),
    st.builds(
        lambda *parts: ["stats", typable(parts[0]), *parts[1]],
        st.sampled_from(["c00", "c99"]) | WORDS,
        option("--method", METHODS | st.just("conditional")),
    ),
    st.builds(
        lambda *parts: ["reproduce", typable(parts[0]), *parts[1], *parts[2], *parts[3]],
        st.sampled_from(["mcmahan", "uefl", "page.yaml"]) | WORDS,
        option("--table", st.sampled_from(["2NN", "1"]) | WORDS),
        option("--scale", st.sampled_from(["cpu", "paper"]) | WORDS),
        option("--seeds", SEEDS),
    ),
    st.builds(lambda name: ["bench", typable(name)], st.sampled_from(["W9", "²", "[/b]"])),
    st.builds(
        lambda *arguments: ["data", *map(typable, arguments)], st.sampled_from(["log", "diff", "use", "²"]), WORDS
    ),
    st.builds(lambda arguments: [typable(one) for one in arguments], st.lists(WORDS | st.just("--help"), max_size=3)),
)


@pytest.fixture(scope="module")
def type_(
    tmp_path_factory: pytest.TempPathFactory, write_params: Callable[[Path], Any]
) -> Iterator[Callable[..., Any]]:
    """Types arguments in a partitioned folder: the exit code, and what was said on both screens."""
    folder = tmp_path_factory.mktemp("any") / "project"
    folder.mkdir()
    shutil.copy(Path(__file__).parents[2] / "params.yaml", folder)
    (folder / "own.py").write_text(OWN)
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "page.yaml").write_text("tables: {1: !!python/name:os.system }\n")
    np.savez(folder / "my.npz", x=np.eye(12), y=np.arange(12) % 2, client=np.arange(12) // 4, domain=np.arange(12) // 8)
    make(Project.open([], folder))
    kept = (folder / "params.yaml").read_bytes()

    def flow(session: Session, flow: ProjectFlow, project: Project, /, **parameters: Any) -> None:
        json.dumps(parameters)  # Prefect's database holds it
        raise SystemExit(0)

    def run(arguments: list[str], content: bytes | None = None) -> tuple[int, str, str]:
        (folder / "params.yaml").write_bytes(kept if content is None else content)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            app(arguments, prog_name="siloflow")
        return end.value.code or 0, out.getvalue(), err.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "run_flow", flow)
        patch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        patch.chdir(folder)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        yield run
        for number, handler in handlers.items():
            signal.signal(number, handler)
    shutil.rmtree(folder)


def test_a_mistake_in_an_archive_is_told_before_prefect_starts(type_, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL")
    np.savez("nan.npz", x=[[np.nan]], y=[0])
    source = "data.source={kind: npz, path: nan.npz}"
    code, out, err = type_(["partition", "--set", source])
    assert (code, out) == (2, "")
    assert err.startswith("error: nan.npz: x: got no value (NaN) of the feature 'x0', column 0, in row 0")
    assert not Path(".prefect").exists()


@pytest.mark.parametrize("seeds", ["²", "0,²", "٣", "-1", "", "1_0", "9" * 5000, str(2**63)])
def test_seeds_that_are_no_numbers_or_too_large_are_told(type_, seeds):
    code, _, err = type_(["compare", "--seeds", seeds])
    assert code == 2
    assert re.match(r"error: --seeds: got .{0,90}, expected (whole numbers separated by commas|at most 9,223)", err)


def is_an_answer_or_a_sentence(code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2), err
    assert "Traceback" not in out + err
    assert "Warning" not in err
    ours = [line for line in err.splitlines() if line.startswith("error: ")]  # typer's own repeat what was typed
    assert sum(map(len, ours)) < MOST_SAID, f"{len(err)} characters: {err[:2000]}"
    assert code == 0 or err.strip()


@pytest.mark.slow
@settings(max_examples=20, print_blob=True)
@given(files(), st.sampled_from(["run fedavg", "run uefl", "run conditional", "compare", "partition", "methods"]))
def test_any_params_are_answered(type_, content, command):
    is_an_answer_or_a_sentence(*type_(command.split(), content))


@pytest.mark.slow
@settings(max_examples=20, print_blob=True)
@given(COMMANDS, overrides())
def test_any_command_is_answered(type_, arguments, more):
    is_an_answer_or_a_sentence(*type_([*arguments, *more]))


@pytest.mark.slow
@settings(max_examples=20, print_blob=True)
@given(PARTITIONS)
def test_any_source_and_scheme_are_answered(type_, arguments):
    is_an_answer_or_a_sentence(*type_(arguments))

"""`siloflow init`: a project folder, with a params.yaml that fits the data.

A params.yaml with other values in it, and the comments that it had.

What params.yaml says for rows of one's own: source, silos, network, objective, rate.

The params.yaml that siloflow comes with: what a new project starts from, and what published tables are repeated over.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flows.config.load_config import load_params
from flows.scaffold.infer_schema import DataOptions, OwnData, infer_schema
from silos import strict_yaml
from silos.dataset import Rows, some
from silos.errors import UserError, shown
from silos.io.atomic_io import write_bytes
from silos.param_types import MAX_NAME_LENGTH
from silos.versioning.dvc_files import first_commit, init_repositories

TEMPLATES = Path(__file__).parent  # that file is called params.yaml, and is the one of siloflow's checkout

_OF_AN_EXPERIMENT = ("data", "model", "training", "clients", "evaluation", "method")


def template_text() -> str:
    """The file as it is written, with its comments."""
    return (TEMPLATES / "params.yaml").read_text(encoding="utf-8")


def deployments_text() -> str:
    """The prefect.yaml that deploys the verbs, with its comments."""
    return point_comments_at_commands((TEMPLATES / "prefect.yaml").read_text(encoding="utf-8"))


def point_comments_at_commands(text: str) -> str:
    """The text for a folder without docs/: its comments name commands, and say once where other pages are."""
    text = re.sub(r"docs/methods/(\w+)\.md", r"siloflow methods \1", text)
    for page, command in _COMMANDS.items():
        text = text.replace(f"docs/{page}.md", f"siloflow {command} --help")
    return re.sub(r"\A(#.*\n)", rf"\1{_PAGES}\n", text) if "docs/" in text else text


_COMMANDS = {"diagnose": "diagnose", "read-a-result": "compare", "statistics": "stats"}
_PAGES = "# docs/ is a folder of siloflow's source; `siloflow methods NAME` and `siloflow COMMAND --help` need no page."


def experiment_overrides() -> list[str]:
    """What decides a result, each section as one override: over another params.yaml only the machine is that one's."""
    held = strict_yaml.load(template_text())
    return [f"{section}={json.dumps(held[section])}" for section in _OF_AN_EXPERIMENT]


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text of a params.yaml with these values, each at its `section.key`, as YAML.

    A value of one line keeps the comment of its line; one of several lines takes the place of the key's whole block, with
    what is written there. KeyError for a key that the text has not.
    """
    lines = text.splitlines()
    for key, value in values.items():
        at = _line_of(lines, key.split("."))
        end = _end_of(lines, at)
        if "\n" in value:
            lines[at:end] = value.strip("\n").split("\n")
            continue
        inside = [line for line in lines[at + 1 : end] if line.lstrip().startswith("#")]  # more of the key's comment
        lines[at:end] = [_with(lines[at], value), *inside]
    return "\n".join(lines) + "\n"


def _line_of(lines: list[str], keys: list[str]) -> int:
    """Of the last of these keys, each of which is inside the one before."""
    at, depth = -1, 0
    for key in keys:
        inside = range(at + 1, len(lines))
        at = next((i for i in inside if _depth(lines[i]) == depth and lines[i].strip().startswith(f"{key}:")), -1)
        if at < 0:
            raise KeyError(".".join(keys))
        depth += 2
    return at


def _end_of(lines: list[str], at: int) -> int:
    """Of the block that begins in this line: the next line that is not deeper."""
    depth = _depth(lines[at])
    return next((i for i in range(at + 1, len(lines)) if _depth(lines[i]) <= depth), len(lines))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _with(line: str, value: str) -> str:
    """The line with another value; its comment stays where it was, if there is room."""
    key, _, rest = line.partition(":")
    comment = rest.find(" #")
    said = f"{key}: {value}"
    return said if comment < 0 else f"{said:<{len(key) + 1 + comment}} {rest[comment + 1 :]}"


_LEAST_PICTURE = 4  # pixels of a side, which two poolings halve
_SMALL_PICTURE = 20  # pixels, up to which two convolutions of 5 x 5 without padding leave too little
_FEW_ROWS = {"classification": 1000, "regression": 2000}  # below which a hidden layer learns them by heart
_RATES = {"classification": 0.15, "regression": 0.01}  # for rows of mean 0 and deviation 1
_STABLE = 0.4  # of a squared error: rate times features, which may all say the same
_ABOUT = {
    "kind": "docs/bring-your-data.md",
    "path": "beside this file",
    "label": "the column that is predicted",
    "client": "the column of a row's silo",
    "drop": "columns that are no features",
    "size": "pixels of a side, to which each picture is squeezed",
    "decimal": "the decimal mark of the file",
    "censored": "how <0.5 is read: limit or half",
    "na_values": "texts that are missing values",
}


def fitting(data: OwnData, name: str, clients: int | None) -> dict[str, str]:
    """Return section.key to YAML, for `filled`; `clients` replaces the silos of the file by this many that are alike."""
    rows = data.rows
    said = {"data.name": name, "data.source": _source(data), "data.scheme": _scheme(rows, clients), **_network(rows)}
    if rows.task == "regression":
        said["training.objective"] = "{kind: squared_error}"
    return said


def _source(data: OwnData) -> str:
    """One key a line: what was guessed is found at once."""
    held = {key: _yaml(value) for key, value in data.source.model_dump(mode="json", exclude_defaults=True).items()}
    lines = [(f"    {key}: {value}", _ABOUT.get(key)) for key, value in held.items()]
    return "\n".join(["  source:", *(f"{line:<31} # {about}" if about else line for line, about in lines)])


def _scheme(rows: Rows, clients: int | None) -> str:
    column = "domain" if rows.client is None else "client"
    step = f"{{kind: column, column: {column}}}" if clients is None else f"{{kind: equal, clients: {clients}}}"
    return f"  scheme:                       # how rows become clients: docs/sources-and-schemes.md\n    - {step}"


def _network(rows: Rows) -> dict[str, str]:
    shape = rows.x.shape[1:]
    if len(shape) in (2, 3) and min(shape[:2]) >= _LEAST_PICTURE:
        scaled = {} if rows.x.dtype == np.uint8 else {"model.inputs": "standardise"}
        return {**_convolutional(min(shape[:2])), **scaled}
    return {} if rows.x.dtype == np.uint8 else _of_table(rows)


def _of_table(rows: Rows) -> dict[str, str]:
    """Standardise; report the best round; take a linear network and half of the steps where rows are few.

    Rows of the commonest class do not count as rows here: of 1,000 rows with 95 % in one class a network learns little.
    """
    said = {"model.inputs": "standardise", "evaluation.report": "best"}
    common = np.unique(rows.y, return_counts=True)[1].max() if rows.task == "classification" else 0
    if len(rows.y) - common < _FEW_ROWS[rows.task]:
        said |= {"model.hidden": "[]", "training.epochs": "1"}
    if rows.task == "regression":
        said["model.targets"] = "standardise"
    rate = _RATES[rows.task] if rows.task == "classification" else min(_RATES[rows.task], _STABLE / rows.x[0].size)
    return {**said, "training.optimiser": f"{{kind: sgd, learning_rate: {rate:.1g}}}"}


def _convolutional(side: int) -> dict[str, str]:
    kernel = "  kernel: 3\n  padding: true" if side < _SMALL_PICTURE else "  kernel: 5\n  padding: false"
    return {
        "model.kind": "cnn",
        "model.hidden": f"  channels: [10, 20]\n{kernel}\n  hidden: [50]\n  channel_dropout: 0.0",
        "training.optimiser": "{kind: sgd, learning_rate: 0.1}",
    }


def _yaml(value: Any) -> str:
    """On one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31)
    return str(text).removesuffix("...\n").strip()


_IGNORED = """# rows, what clients keep, results and caches; data.dvc says which rows there were
/data
/private/
/runs/
/.data-use/
/.data-used/
/cache/
/downloads/
/.prefect/
"""


def create_project(folder: Path, file: Path | None, asked: DataOptions) -> dict[str, Any]:
    """A project in this folder, new or empty but for the data's file, which is copied there if it lies elsewhere.

    A folder of pictures may take the place of the file. Without a file the data are the digits that come with
    scikit-learn. Answers with what was made, what was guessed and what to type next. UserError, and nothing made, for a
    folder that holds anything, and where the file is no source.
    """
    if file is not None and file.is_dir():
        file = file.resolve()  # `.` has no name
        if folder.resolve().is_relative_to(file):
            raise UserError(
                f"DIR: got {folder}, expected a folder outside of the pictures in {file}. Name another folder."
            )
    _must_be_free(folder, file)
    data = None if file is None else infer_schema(file, asked)
    text = template_text()
    if data is not None:
        text = filled(text, fitting(data, _plain(data), asked.clients))
    with _whole(folder):
        copied = file is not None and not _is_in(folder, file)
        if file is not None and copied:
            _copy(file, folder / file.name)
        ignored = "" if file is None else f"/{_as_pattern(file.name)}\n"
        write_bytes(folder / ".gitignore", (_IGNORED + ignored).encode())
        write_bytes(folder / "prefect.yaml", deployments_text().encode())
        write_bytes(folder / "params.yaml", point_comments_at_commands(text).encode())
        model = load_params(folder).model
        repositories = init_repositories(folder)
        committed = "git" in repositories and first_commit(folder)
    return {
        "folder": str(folder),
        "repositories": repositories,
        "committed": committed,
        "copied": file.name if file is not None and copied else None,
        "guessed": [] if data is None else list(data.guessed),
        "left_out": [] if data is None else list(data.left_out),
        "read": None if data is None else _read(data),
        "network": {"kind": model.kind, **({"hidden": model.hidden} if model.kind == "mlp" else {})},
    }


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without what is hidden."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
    else:
        shutil.copyfile(source, target)


def _must_be_free(folder: Path, file: Path | None) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder that is new or empty.")
    if (folder / "params.yaml").exists():
        raise UserError(
            f"{folder} is a project already: it has a params.yaml; name another folder, or change that file."
        )
    own = {file.name} if file is not None and _is_in(folder, file) else {}
    held = sorted(path.name for path in folder.iterdir() if path.name not in {".git", *own}) if folder.is_dir() else []
    if held:
        raise UserError(
            f"{folder} is not empty: it holds {some([shown(name, 40) for name in held], 3)}; name a new folder."
        )


def _is_in(folder: Path, file: Path) -> bool:
    """Whether the file, or a link to it, lies in the folder."""
    return file.parent.resolve() == folder.resolve()


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """The folder, in which nothing stays of what could not be ended."""
    new = not folder.exists()
    before = set() if new else set(folder.iterdir())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in set(folder.iterdir()) - before if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if new and folder.is_dir():
            folder.rmdir()
        raise


def _as_pattern(name: str) -> str:
    """A file's name as git leaves it out: with brackets in it, it would be a pattern of other names."""
    return re.sub(r"([\\*?\[ ])", r"\\\1", name)


def _plain(data: OwnData) -> str:
    """The file's name as a folder under data/."""
    stem = data.source.path.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:MAX_NAME_LENGTH] or "mine"


def _read(data: OwnData) -> dict[str, Any]:
    """What the file holds."""
    rows = data.rows
    silos = rows.domain if rows.client is None else rows.client
    clients = None if silos is None else len(set(silos.tolist()))
    return {"rows": len(rows.y), "shape": list(rows.x.shape[1:]), "classes": len(rows.classes), "clients": clients}

"""Create a project folder for `siloflow init`, with a params.yaml that fits the data and keeps the template's comments."""

import filecmp
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import yaml

from flows.core.config.load_config import load_params
from flows.init_project.guess_roles import Ask
from flows.init_project.infer_schema import DataOptions, OwnData, infer_schema
from silos import strict_yaml
from silos.dataset import Rows
from silos.errors import UserError, shown, some
from silos.io.atomic_io import write_bytes
from silos.param_types import MAX_NAME_LENGTH
from silos.versioning.dvc_files import first_commit, init_repositories
from silos.versioning.git_commands import add_ignored
from tasks.tracking.result_types.project_results import ChosenNetwork, CreatedProject, RowsRead

TEMPLATES = Path(__file__).parent  # its params.yaml equals that of siloflow's repository

_EXPERIMENT_SECTIONS = ("data", "model", "training", "clients", "aggregation", "evaluation", "method")


def template_text() -> str:
    """Return the params.yaml of a new project, with its comments."""
    return (TEMPLATES / "params.yaml").read_text(encoding="utf-8")


def deployments_text() -> str:
    """Return the prefect.yaml that deploys the commands, with its comments."""
    return point_comments_at_commands((TEMPLATES / "prefect.yaml").read_text(encoding="utf-8"))


def stages_text(file: Path | None) -> str:
    """Return the dvc.yaml with the stages; partition depends on the data's file, if there is one."""
    text = point_comments_at_commands((TEMPLATES / "dvc.yaml").read_text(encoding="utf-8"))
    return text if file is None else text.replace("    outs:", f"    deps: [{json.dumps(file.name)}]\n    outs:", 1)


def operations_texts() -> dict[str, str]:
    """Return the files for servers, containers and CI that `init --ops` writes, by their path in a project."""
    return {
        place: point_comments_at_commands((TEMPLATES / "ops" / name).read_text(encoding="utf-8"))
        for name, place in _OPERATIONS.items()
    }


_OPERATIONS = {
    "Dockerfile": "ops/Dockerfile",
    "compose.yaml": "ops/compose.yaml",
    "env.example": "ops/env.example",
    "siloflow@.service": "ops/siloflow@.service",
    "place.yaml": "ops/place.yaml",
    "siloflow-place@.service": "ops/siloflow-place@.service",
    "ci.yaml": ".github/workflows/compare.yaml",
    "pre-commit-config.yaml": ".pre-commit-config.yaml",
}


def point_comments_at_commands(text: str) -> str:
    """Replace pages by commands in comments, for a folder without docs/, and add a line that says where other pages are."""
    text = re.sub(r"docs/methods/(\w+)\.md", r"siloflow methods \1", text)
    for page, command in _COMMANDS.items():
        text = text.replace(f"docs/{page}.md", f"siloflow {command} --help")
    return re.sub(r"\A(#.*\n)", rf"\1{_PAGES}\n", text) if "docs/" in text else text


_COMMANDS = {"diagnose": "diagnose", "tune": "compare", "statistics": "stats"}
_PAGES = (
    "# docs/ is in siloflow's repository; `siloflow methods NAME` and `siloflow COMMAND --help` describe options here."
)


def experiment_overrides() -> list[str]:
    """Return each section that decides a result as one override, so that another params.yaml only decides the machine."""
    params = strict_yaml.load(template_text())
    return [f"{section}={json.dumps(params[section])}" for section in _EXPERIMENT_SECTIONS]


def replace_values(text: str, values: Mapping[str, str]) -> str:
    """Replace values in the text of a params.yaml, each at its `section.key` and given as YAML.

    A value of one line keeps the comment of its line; one of several lines replaces the key's whole block. KeyError for
    a key that the text lacks.
    """
    lines = text.splitlines()
    for key, value in values.items():
        start = _find_line(lines, key.split("."))
        end = _find_end(lines, start)
        if "\n" in value:
            lines[start:end] = value.strip("\n").split("\n")
            continue
        comments = [line for line in lines[start + 1 : end] if line.lstrip().startswith("#")]  # of the same key
        lines[start:end] = [_replace_value(lines[start], value), *comments]
    return "\n".join(lines) + "\n"


def _find_line(lines: list[str], keys: list[str]) -> int:
    """Return the index of the last key's line; each key is nested in the one before."""
    index, depth = -1, 0
    for key in keys:
        following = range(index + 1, len(lines))
        index = next((i for i in following if _depth(lines[i]) == depth and lines[i].strip().startswith(f"{key}:")), -1)
        if index < 0:
            raise KeyError(".".join(keys))
        depth += 2
    return index


def _find_end(lines: list[str], start: int) -> int:
    """Return the end of the block that begins in this line: the next line that is not deeper."""
    depth = _depth(lines[start])
    return next((i for i in range(start + 1, len(lines)) if _depth(lines[i]) <= depth), len(lines))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _replace_value(line: str, value: str) -> str:
    """Replace the line's value; its comment keeps its column if there is room."""
    key, _, rest = line.partition(":")
    comment = rest.find(" #")
    replaced = f"{key}: {value}"
    return replaced if comment < 0 else f"{replaced:<{len(key) + 1 + comment}} {rest[comment + 1 :]}"


_LEAST_PICTURE = 4  # pixels of a side, which two pooling layers halve
_SMALL_PICTURE = 20  # pixels; for smaller images, two 5 x 5 convolutions without padding leave too little
_FEW_ROWS = {"classification": 1000, "regression": 2000}  # with fewer rows a hidden layer overfits
_MANY_ROWS = 2000  # of a silo with all its splits; one pass over the 60 % that train has 75 steps
_MANY_TO_SCORE = 100_000  # rows of all silos; scoring 40 % takes half as long as training, and runs are worth a process
_RATES = {"classification": 0.15, "regression": 0.01}  # for rows of mean 0 and deviation 1
_STABLE = 0.4  # learning rate times features that is stable for a squared error, even if all features are equal
_ABOUT = {
    "kind": "docs/bring-your-data.md",
    "path": "relative to this file",
    "label": "the column to predict",
    "client": "the column with the silo of each row",
    "split": "the column that marks rows as train, validation or test",
    "unit": "the column of patients, plants or machines, whose rows stay in one split",
    "drop": "columns that are not features",
    "size": "width and height in pixels to which each image is resized",
    "decimal": "the decimal mark of the file",
    "censored": "how to read <0.5: limit or half",
    "na_values": "texts that mean a missing value",
}


def suggest_params(data: OwnData, name: str, clients: int | None) -> dict[str, str]:
    """Return params that fit the data, section.key to YAML; `clients` replaces the file's silos by that many equal ones."""
    rows = data.rows
    values = {"data.name": name, "data.source": _source(data), "data.scheme": _scheme(rows, clients)}
    values |= _network_params(rows)
    if _rows_of_silo(rows, clients) >= _MANY_ROWS:
        values["training.epochs"] = "1"
    if len(rows.y) >= _MANY_TO_SCORE:
        values |= {"evaluation.every": "5", "runner.parallel_runs": "auto"}
    if rows.task == "regression":
        values["training.objective"] = "{kind: squared_error}"
    metric = _metric_of_rare_class(rows)
    return values if metric is None else values | {"evaluation.metric": metric}


def _rows_of_silo(rows: Rows, clients: int | None) -> float:
    """Return the median number of rows of a silo."""
    if clients is not None:
        return len(rows.y) / clients
    silos = rows.domain if rows.client is None else rows.client
    return len(rows.y) if silos is None else float(np.median(np.unique(silos, return_counts=True)[1]))


def _metric_of_rare_class(rows: Rows) -> str | None:
    """Return the metric for classes of which the rarest is under 20 % of the rows; None if accuracy will do.

    Of more than five classes, the rarest must have less than half of an equal share. With two classes that no silo
    has both of, AUC is undefined everywhere.
    """
    if rows.task != "classification" or len(rows.classes) < 2:
        return None
    counts = np.bincount(rows.y, minlength=len(rows.classes))
    limit = _RARE if len(counts) <= _FEW_CLASSES else 0.5 / len(counts)
    if counts.min() >= limit * len(rows.y):
        return None
    if len(counts) > 2:
        return "balanced_accuracy"
    silos = rows.domain if rows.client is None else rows.client
    mixed = silos is None or any(len(np.unique(rows.y[silos == silo])) > 1 for silo in np.unique(silos))
    return "auc" if mixed else "balanced_accuracy"


_RARE = 0.2  # share of the rows
_FEW_CLASSES = 5


def _source(data: OwnData) -> str:
    """Write one key per line, so that the user finds each guess."""
    params = {key: _yaml(value) for key, value in data.source.model_dump(mode="json", exclude_defaults=True).items()}
    lines = [(f"    {key}: {value}", _ABOUT.get(key)) for key, value in params.items()]
    return "\n".join(["  source:", *(f"{line:<31} # {comment}" if comment else line for line, comment in lines)])


def _scheme(rows: Rows, clients: int | None) -> str:
    column = "domain" if rows.client is None else "client"
    step = f"{{kind: column, column: {column}}}" if clients is None else f"{{kind: equal, clients: {clients}}}"
    return f"  scheme:                       # how rows become clients: docs/sources-and-schemes.md\n    - {step}"


def _network_params(rows: Rows) -> dict[str, str]:
    shape = rows.x.shape[1:]
    if len(shape) in (2, 3) and min(shape[:2]) >= _LEAST_PICTURE:
        scaled = {} if rows.x.dtype == np.uint8 else {"model.inputs": "standardise"}
        return {**_image_params(min(shape[:2])), **scaled}
    return {} if rows.x.dtype == np.uint8 else _table_params(rows)


def _table_params(rows: Rows) -> dict[str, str]:
    """Standardise and report the best round; for few rows, use a linear network and half of the steps.

    Rows of the commonest class do not count: from 1,000 rows with 95 % in one class, a network learns little.
    """
    params = {"model.inputs": "standardise", "evaluation.report": "best"}
    commonest = np.unique(rows.y, return_counts=True)[1].max() if rows.task == "classification" else 0
    if len(rows.y) - commonest < _FEW_ROWS[rows.task]:
        params |= {"model.hidden": "[]", "training.epochs": "1"}
    if rows.task == "regression":
        params["model.targets"] = "standardise"
    rate = _RATES[rows.task] if rows.task == "classification" else min(_RATES[rows.task], _STABLE / rows.x[0].size)
    return {**params, "training.optimiser": f"{{kind: sgd, learning_rate: {rate:.1g}}}"}


def _image_params(side: int) -> dict[str, str]:
    kernel = "  kernel: 3\n  padding: true" if side < _SMALL_PICTURE else "  kernel: 5\n  padding: false"
    return {
        "model.kind": "cnn",
        "model.hidden": f"  channels: [10, 20]\n{kernel}\n  hidden: [50]\n  channel_dropout: 0.0",
        "training.optimiser": "{kind: sgd, learning_rate: 0.1}",
    }


def _yaml(value: object) -> str:
    """Return the value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31)
    return str(text).removesuffix("...\n").strip()


_IGNORED = (
    "# rows, private values of clients, results and caches; data.dvc records the version of the rows",
    *(
        "/data",
        "/private/",
        "/runs/",
        "/.data-use/",
        "/.data-used/",
        "/cache/",
        "/downloads/",
        "/.prefect/",
        "/ops/.env",
    ),
)


def _ignore(folder: Path, more: Sequence[str]) -> None:
    """Write the lines of .gitignore that are not there."""
    path = folder / ".gitignore"
    before = path.read_bytes().splitlines() if path.exists() else []
    lines = [line for line in (*_IGNORED, *more) if line.encode() not in before]
    if lines:
        add_ignored(folder, lines)


def _write_params(folder: Path, content: bytes) -> str | None:
    """Write params.yaml, and keep an earlier one of other content under another name, which is returned."""
    path = folder / "params.yaml"
    before = path.read_bytes() if path.exists() else content
    write_bytes(path, content)
    if before == content:
        return None
    names = ("params.yaml.old", *(f"params.yaml.old.{number}" for number in range(2, 1000)))
    kept = next(name for name in names if not (folder / name).exists())
    write_bytes(folder / kept, before)
    return kept


def create_project(
    folder: Path,
    file: Path | None,
    options: DataOptions,
    ops: bool = False,
    force: bool = False,
    ask: Ask | None = None,
) -> CreatedProject:
    """Create a project in a new folder, or in one that is empty apart from the data's file.

    Args:
        folder: The project's folder.
        file: The data's file or folder of images, copied if it is elsewhere; None for scikit-learn's digits.
        options: The options for the file.
        ops: Also write dvc.yaml, and the files of `operations_texts`.
        force: Write params.yaml again in the folder of a project; the earlier one becomes params.yaml.old, and
            a copy of the data in the folder is read as it is.
        ask: Asks the user for the column of a role that is unclear.

    Returns:
        What was created, what was guessed, and the data's size.

    Raises:
        UserError: If the folder is not empty, or the file is no source; then nothing is created.
    """
    if file is not None and file.is_dir():
        file = file.resolve()  # gives `.` a name
    _check_folder(folder, file, force)
    own = None if file is None or not file.exists() else folder / file.name
    has_copy = own is not None and own.exists()
    data = None if file is None else infer_schema(own if own is not None and has_copy else file, options, ask)
    text = template_text()
    chosen: list[str] = []
    if data is not None:
        values = suggest_params(data, _data_name(data), options.clients)
        text = replace_values(text, values)
        if "evaluation.metric" in values:
            chosen.append(f"methods are compared by {values['evaluation.metric']}, since a class is rare")
    with _undo_on_error(folder):
        if file is not None and own is not None and not has_copy:
            _copy(file, own)
        _ignore(folder, [] if file is None else [f"/{_git_pattern(file.name)}"])
        _write_operations(folder, file, ops)
        replaced = _write_params(folder, point_comments_at_commands(text).encode())
        model = load_params(folder).model
        repositories = init_repositories(folder)
        committed = "git" in repositories and first_commit(folder)
    network: ChosenNetwork = {"kind": model.kind}
    if model.kind == "mlp":
        network["hidden"] = model.hidden
    return {
        "folder": str(folder),
        "repositories": repositories,
        "committed": committed,
        "ops": ops,
        "copied": own.name if own is not None and not has_copy else None,
        "own_copy": own.name if file is not None and own is not None and has_copy and not _equal(file, own) else None,
        "guessed": [] if data is None else [*data.guessed, *chosen],
        "left_out": [] if data is None else list(data.left_out),
        "missing": [] if data is None else list(data.missing),
        "replaced": replaced,
        "read": None if data is None else _describe(data),
        "network": network,
    }


def _check_folder(folder: Path, file: Path | None, force: bool) -> None:
    """Raise a UserError if a project cannot be made in the folder, or made again with `force`."""
    if file is not None and file.is_dir() and folder.resolve().is_relative_to(file):
        raise UserError(f"DIR: got {folder}, expected a folder outside of the images in {file}. Name another folder.")
    is_again = force and (folder / "params.yaml").is_file()
    if not is_again:
        _check_empty(folder, file)


def _write_operations(folder: Path, file: Path | None, ops: bool) -> None:
    """Write prefect.yaml unless there is one, and with `ops` dvc.yaml and the files of `operations_texts`."""
    if not (folder / "prefect.yaml").exists():
        write_bytes(folder / "prefect.yaml", deployments_text().encode())
    if ops:
        for place, content in {"dvc.yaml": stages_text(file), **operations_texts()}.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / place, content.encode())


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without hidden files."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
    else:
        shutil.copyfile(source, target)


def _equal(file: Path, own: Path) -> bool:
    """Return whether two files, or two folders but for hidden files, have the same content."""
    if file.is_dir() and own.is_dir():
        names = [sorted(path.name for path in each.iterdir() if path.name[0] != ".") for each in (file, own)]
        return names[0] == names[1] and all(_equal(file / name, own / name) for name in names[0])
    return file.is_file() and own.is_file() and filecmp.cmp(file, own, shallow=False)


def _check_empty(folder: Path, file: Path | None) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"DIR: got {folder}, which is a file, expected a new or empty folder. Name another.")
    if (folder / "params.yaml").exists():
        raise UserError(
            f"DIR: got {folder}, which is a project already, expected a new or empty folder. Name another folder, "
            "edit its params.yaml, or add --force to write it again."
        )
    data_file = {file.name} if file is not None and _contains(folder, file) else {}
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    found = sorted(names - {".git", *data_file})
    if found:
        raise UserError(
            f"DIR: got {folder}, which contains {some([shown(name, 40) for name in found], 3)}, expected a new or "
            "empty folder. Name another."
        )


def _contains(folder: Path, file: Path) -> bool:
    """Return whether the file, or a link to it, is in the folder."""
    return file.parent.resolve() == folder.resolve()


@contextmanager
def _undo_on_error(folder: Path) -> Iterator[None]:
    """Create the folder; if the code inside fails, remove what it has created, and restore an earlier params.yaml."""
    new = not folder.exists()
    before = set() if new else set(folder.iterdir())
    params = folder / "params.yaml"
    content = params.read_bytes() if params.is_file() else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in set(folder.iterdir()) - before if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if content is not None:
            write_bytes(params, content)
        if new and folder.is_dir():
            folder.rmdir()
        raise


def _git_pattern(name: str) -> str:
    """Escape a file's name for .gitignore, where brackets would make it a pattern."""
    return re.sub(r"([\\*?\[ ])", r"\\\1", name)


def _data_name(data: OwnData) -> str:
    """Return the name of the data's folder in data/, from the file's name."""
    stem = data.source.path.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:MAX_NAME_LENGTH] or "mine"


def _describe(data: OwnData) -> RowsRead:
    """Describe the rows that were read."""
    rows = data.rows
    silos = rows.domain if rows.client is None else rows.client
    clients = None if silos is None else len(set(silos.tolist()))
    return {"rows": len(rows.y), "shape": list(rows.x.shape[1:]), "classes": len(rows.classes), "clients": clients}

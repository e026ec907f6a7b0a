"""Render a report as one HTML file: sections of sentences, tables and figures, without scripts and other files."""

import base64
import platform
import re
import shlex
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from flows.project.project import Project
from flows.training.run_records.mlflow_run_metadata import git_commit
from silos.io.atomic_io import write_bytes
from tasks.tracking.metric_names import legible

FILE = "report.html"
"""Name of the report in the folder of a comparison or a diagnosis."""

MAX_FIGURE = 400_000
"""Bytes of a figure: a larger one stays a file of its own, so that a report has less than 2 MB."""

MAX_ROWS = 50
"""Rows of a long table that are visible; the reader opens the others."""

_MAX_OTHERS = 1_000  # rows that the reader can open
_PACKAGES = ("siloflow", "torch", "numpy", "scipy", "scikit-learn", "prefect", "mlflow", "dvc")
_WIDE = 1_000  # pixels; the panels of a comparison have 900
_NUMBER = re.compile(r"[−+-]?[\d.,]+ (± [\d.,]+|[kMGT]?B|[−+][\d.,]+\*?)")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its heading. The reader opens the `others`, and `note` stands below."""

    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    others: Sequence[Sequence[str]] = ()
    note: str = ""

    @classmethod
    def long(cls, caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]], full: str) -> "Table":
        """Show the first rows, fold some of the others, and name the file with the full table if rows are left out."""
        end = MAX_ROWS + _MAX_OTHERS
        note = f"{len(rows) - end:,} more rows are in {full}." if len(rows) > end else ""
        if len(rows) > MAX_ROWS:
            caption = f"{caption}: the first {MAX_ROWS} of {len(rows):,}"
        return cls(caption, titles, rows[:MAX_ROWS], rows[MAX_ROWS:end], note)


@dataclass(frozen=True)
class Figure:
    """A picture; `alt` describes it for readers who do not see it."""

    png: bytes
    caption: str
    alt: str

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height in pixels, from the header of the PNG."""
        width, height = struct.unpack(">II", self.png[16:24])
        return width, height

    @property
    def is_wide(self) -> bool:
        """Return whether the figure takes the width of the page, and scrolls on a phone."""
        return self.size[0] > _WIDE

    @property
    def source(self) -> Markup:
        """Return the picture as the value of `src`."""
        return Markup("data:image/png;base64,") + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Section:
    """A part of the report, in this order: sentences, figures, tables, facts (a term and its value), commands."""

    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[tuple[str, str]] = ()
    commands: Sequence[str] = ()


def write_report(path: Path, title: str, about: str, sections: Iterable[Section]) -> Path:
    """Write the report, completely or not at all; every name and value of the data is escaped."""
    page = _environment().get_template("report.html").render(title=title, about=about, sections=list(sections))
    write_bytes(path, page.encode("utf-8", "backslashreplace"))
    return path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("flows.results.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else legible(str(value), lambda _: True),
    )
    environment.filters |= {"sentence": _sentence, "cell": _cell}
    return environment


def _sentence(text: str) -> Markup:
    """Return the text with code between backticks as an element."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(legible(text, lambda _: True)))))


def _cell(text: str) -> str:
    """Keep a number with its unit or deviation on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}") if _NUMBER.fullmatch(text) else text


def figure_of(path: Path, caption: str, alt: str) -> list[Figure]:
    """Return the figure of a file; none if there is no such file, or if it is too large for the report."""
    png = path.read_bytes() if path.is_file() else b""
    return [Figure(png, caption, alt)] if 0 < len(png) <= MAX_FIGURE else []


def origin_section(
    project: Project, version: str, command: Sequence[str], settings: Sequence[tuple[str, str]] = ()
) -> Section:
    """Return the section on the data, the commands that repeat the result, and the versions of packages.

    Args:
        project: The project.
        version: The data version of the result.
        command: The words of the command that repeats it.
        settings: Facts on the settings, a term and its value.
    """
    commit, silos = git_commit(project.root), project.silos
    rows = {
        split: int(silos.rows_array(split).sum()) + silos.common(split) for split in ("train", "validation", "test")
    }
    is_clean = commit != "none" and not commit.endswith("+changes")
    commands = [*([f"git checkout {commit}"] if is_clean else []), f"siloflow data use {version[:10]}"]
    facts = [
        ("data", f"{project.params.data.name}: {len(silos.clients):,} silos, {_rows(rows)}"),
        ("data version", version),
        ("git commit", commit),
        *settings,
        *((name, number) for name, number in package_versions().items()),
    ]
    changed = "Files differed from the commit: keep them with the report." if commit.endswith("+changes") else ""
    sentences = ["These commands repeat the result, with the same versions of packages to the same bits.", changed]
    title = "Data, commands and versions"
    return Section(title, list(filter(None, sentences)), facts=facts, commands=[*commands, shlex.join(command)])


def _rows(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in rows.items() if count) + " rows"


def package_versions() -> dict[str, str]:
    """Map Python and the packages that results depend on to their versions."""
    versions = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a checkout on the path, without an install
            versions[package] = "not installed"
    return versions


def repeated(command: str, project: Project, *arguments: str) -> list[str]:
    """Return the words of a command with the project's overrides."""
    overrides = [word for override in project.overrides for word in ("--set", override)]
    return ["siloflow", command, *arguments, *overrides]

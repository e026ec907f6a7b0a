"""Loads a project's plugin files; an error in one is a sentence with file, line and Python's message."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import cloudpickle

from flows.console.interruption import interruption
from silos.errors import UserError, shown
from silos.io.atomic_io import is_there
from silos.plugin_registry import Entry, Registry, collected
from tasks.tracking.json_io import unwritable

_PREFIX = "siloflow_plugin_"


class MethodError(UserError):
    """A user's own page raised an error: their mistake, and no reason to stop the other runs of a comparison."""


@dataclass(frozen=True)
class Plugins:
    """What the plugin files of a project registered."""

    entries: tuple[Entry, ...] = ()

    def of(self, registry: Registry) -> dict[str, Entry]:
        """The entries of a kind, by name."""
        return {entry.name: entry for entry in self.entries if entry.kind == registry.kind}


NONE = Plugins()


def load(root: Path, files: Sequence[str]) -> Plugins:
    """Run the plugin files, and return what they register; what they print is progress, and goes to stderr.

    A file is run once a process as long as its text stays the same.

    Raises:
        UserError: for a path that is no Python file, a file that fails, and a name that two files register.
    """
    entries: dict[tuple[str, str], Entry] = {}
    for at, file in enumerate(files):
        path = root / file
        if path.suffix != ".py" or not is_there(path):
            raise UserError(
                f"params.yaml: plugins.{at}: got {shown(str(path), 200)}, expected a Python file (.py) that is there. "
                "Give its path from the folder of params.yaml."
            )
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"params.yaml: plugins.{at}: cannot read {shown(str(path), 200)}: {error.strerror}."
            ) from None
        for entry in _entries(str(path), sha256(text).hexdigest()):
            other = entries.setdefault((entry.kind, entry.name), entry)
            if other.file != entry.file:
                raise UserError(
                    f"params.yaml: plugins: got the {entry.kind} {entry.name!r} from {Path(other.file).name} and from "
                    f"{path.name}, expected one of each name. Rename one of them."
                )
    return Plugins(tuple(entries.values()))


@lru_cache(maxsize=256)
def _entries(file: str, digest: str) -> tuple[Entry, ...]:
    """Run a file of this content; its module has a name of its own, so that two projects may each have a `mine.py`."""
    name = f"{_PREFIX}{Path(file).stem}_{sha256(file.encode()).hexdigest()[:8]}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with user_code_errors(name), contextlib.redirect_stdout(sys.stderr), collected(file, name) as found:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    # a worker process has no such module, and gets its functions as they are
    cloudpickle.register_pickle_by_value(module)
    return tuple(found)


@contextmanager
def user_code_errors(module: str) -> Iterator[None]:
    """Around what runs code of this module: an error in it is a sentence if the module is a user's own page."""
    try:
        yield
    except (Exception, SystemExit) as error:
        path = getattr(sys.modules.get(module), "__file__", None)
        if isinstance(error, UserError) or not module.startswith(_PREFIX) or path is None:
            raise
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        said = f"{type(error).__name__}: {shown(message, 200)}" if message else type(error).__name__
        line = line_of(error, path)
        raise UserError(f"{path}{f', line {line}' if line else ''}: {said}; mend the page.") from error


def plugin_error(error: BaseException, method: str, files: Mapping[str, str], page: str = "") -> MethodError | None:
    """Say which plugin file raised an error in a run's rounds; None if none did.

    `files` are the paths of the plugin files and their names for people. `page` is the path of the file that has the
    method, if that is one of them: it answers for errors whose line is not known. A UserError is a file's if a line of the
    file raised it, and says itself what to do.
    """
    if unwritable(error) or interruption(error):
        return None
    trace = traceback.extract_tb(error.__traceback__)
    if isinstance(error, UserError):
        return MethodError(str(error)) if (error.raised_in or trace[-1].filename) in files else None
    notes = getattr(error, "__notes__", ())  # inside a step the step has said where (see tasks.execution.task_types)
    reached = [frame.filename for frame in trace if frame.filename in files]
    noted = [path for path in files if any(f"({Path(path).name}, line " in note for note in notes)]
    path = next(iter([*reached[-1:], *noted, *([page] if page else [])]), None)
    if path is None:
        return None
    line = line_of(error, path)
    where = f" {notes[0]}" if notes else f" ({Path(path).name}, line {line})" if line else ""
    return MethodError(
        f"{method} failed: {type(error).__name__}: {error}{where}; "
        f"mend {files[path]}, and --resume goes on after the last whole round."
    )


def line_of(error: BaseException, path: str) -> int | None:
    """The line of this page where it happened, the innermost; None where no line of it was reached."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    return lines[-1] if lines else None

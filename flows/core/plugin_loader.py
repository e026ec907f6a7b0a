"""Loads a project's plugin files; an error in a file is reported with file, line and Python's message."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5, sha256
from pathlib import Path

import cloudpickle

from flows.core.console.process_control import interruption
from silos.errors import MethodError, UserError, shown
from silos.io.atomic_io import is_there
from silos.plugin_registry import Entry, Registry, collect_entries
from tasks.tracking.json_io import unwritable

_PREFIX = "siloflow_plugin_"


@dataclass(frozen=True)
class Plugins:
    """What the plugin files of a project registered."""

    entries: tuple[Entry, ...] = ()

    def of(self, registry: Registry) -> dict[str, Entry]:
        """Return the entries of a kind, by name."""
        return {entry.name: entry for entry in self.entries if entry.kind == registry.kind}


NONE = Plugins()


class PluginFiles:
    """Holds the plugin files of a project: a command reads and runs each of them once, and keeps that version."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder that paths of plugin files are relative to."""
        self._root = root
        self._run: dict[str, tuple[Entry, ...]] = {}

    def load(self, files: Sequence[str]) -> Plugins:
        """Run the plugin files that were not run yet, and return what all of `files` register.

        Args:
            files: Paths, as `plugins` of params.yaml names them.

        Raises:
            UserError: If a path is no Python file, a file fails, or two files register the same name.
        """
        entries: dict[tuple[str, str], Entry] = {}
        for index, file in enumerate(files):
            if file not in self._run:
                self._run[file] = self._entries_of(file, index)
            for entry in self._run[file]:
                other = entries.setdefault((entry.kind, entry.name), entry)
                if other.file != entry.file:
                    raise UserError(
                        f"params.yaml: plugins: got the {entry.kind} {entry.name!r} from {Path(other.file).name} and "
                        f"from {Path(entry.file).name}, expected one of each name. Rename one of them."
                    )
        return Plugins(tuple(entries.values()))

    def _entries_of(self, file: str, index: int) -> tuple[Entry, ...]:
        path = self._root / file
        if path.suffix != ".py" or not is_there(path):
            raise UserError(
                f"params.yaml: plugins.{index}: got {shown(str(path), 200)}, expected an existing Python file "
                "(.py). Give its path relative to the folder of params.yaml."
            )
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"params.yaml: plugins.{index}: got {shown(str(path), 200)}, expected a readable file ("
                f"{error.strerror}). Correct the path or its permissions."
            ) from None
        return _run_plugin(str(path), text)


@lru_cache(maxsize=256)
def _run_plugin(file: str, text: bytes) -> tuple[Entry, ...]:
    """Run the text of a plugin file in a module of its own; a process runs an unchanged text once.

    The text itself is compiled, since Python's import could run a stale .pyc file. What the file prints goes to stderr.
    """
    digest = md5(text, usedforsecurity=False).hexdigest()
    # two projects may each have a mine.py
    name = f"{_PREFIX}{Path(file).stem}_{sha256(file.encode()).hexdigest()[:8]}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with (
            user_code_errors(name),
            contextlib.redirect_stdout(sys.stderr),
            collect_entries(file, name, digest) as entries,
        ):
            exec(compile(text, file, "exec", dont_inherit=True), vars(module))
            _check_messages(name)
    except BaseException:
        del sys.modules[name]
        raise
    # a worker process has no such module: functions and classes travel by value, so every worker has this version
    cloudpickle.register_pickle_by_value(module)
    return tuple(entries)


def _check_messages(module: str) -> None:
    """Raise TypeError for a message of this module that does not declare its numbers; the first round would otherwise.

    A class that others of the module extend is not sent itself, and may leave its fields to these.
    """
    policy = sys.modules.get("tasks.messages.message_policy")  # it imports torch, as a file with a message has done
    if policy is None:
        return
    own = [each for each in vars(sys.modules[module]).values() if isinstance(each, type) and each.__module__ == module]
    for kind in own:
        if issubclass(kind, policy.Message) and not any(kind in other.__mro__[1:] for other in own):
            policy.numbers_of(kind)


@contextmanager
def user_code_errors(module: str) -> Iterator[None]:
    """Turn an error inside into a UserError with file and line, if `module` is a plugin's; other errors pass."""
    try:
        yield
    except (Exception, SystemExit) as error:
        path = getattr(sys.modules.get(module), "__file__", None)
        if isinstance(error, UserError) or not module.startswith(_PREFIX) or path is None:
            raise
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        text = f"{type(error).__name__}: {shown(message, 200)}" if message else type(error).__name__
        line = line_of(error, path)
        raise UserError(f"{path}{f', line {line}' if line else ''}: {text}. Correct the plugin file.") from error


def plugin_error(
    error: BaseException, method: str, files: Mapping[str, str], method_file: str = ""
) -> MethodError | None:
    """Explain an error in a run's rounds that a plugin file raised; None if no plugin file raised it.

    A UserError is a file's if a line of the file raised it; its message is kept.

    Args:
        error: The error.
        method: The method's name.
        files: Paths of the plugin files, with their names for messages.
        method_file: The one of `files` that registers the method, if any; it is named if no line is known.
    """
    if unwritable(error) or interruption(error):
        return None
    trace = traceback.extract_tb(error.__traceback__)
    if isinstance(error, UserError):
        return MethodError(str(error)) if (error.raised_in or trace[-1].filename) in files else None
    notes = getattr(error, "__notes__", ())  # a step notes where its error arose (see tasks.execution.steps)
    reached = [frame.filename for frame in trace if frame.filename in files]
    noted = [path for path in files if any(f"({Path(path).name}, line " in note for note in notes)]
    path = next(iter([*reached[-1:], *noted, *([method_file] if method_file else [])]), None)
    if path is None:
        return None
    line = line_of(error, path)
    location = f" {notes[0]}" if notes else f" ({Path(path).name}, line {line})" if line else ""
    return MethodError(
        f"{method} failed: {type(error).__name__}: {error}{location}. Correct {files[path]}; --resume continues "
        "after the last complete round."
    )


def line_of(error: BaseException, path: str) -> int | None:
    """Return the innermost line of this file that the error's traceback reached; None if it reached none."""
    line_numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        line_numbers.append(error.lineno)
    return line_numbers[-1] if line_numbers else None

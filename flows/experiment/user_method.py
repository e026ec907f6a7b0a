"""A user's own method, from its file: what Python refuses in it is told with file, line and Python's message."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import cloudpickle

from flows.console.ctrl_c import interruption
from silos.errors import UserError, shown
from silos.machine.files import is_there
from tasks.recording.json_files import unwritable

_PREFIX = "siloflow_extra_"


class MethodError(UserError):
    """A user's own page raised an error: their mistake, and no reason to stop the other runs of a comparison."""


def load(name: str, path: Path) -> ModuleType:
    """The page of the method `name`; what it prints is progress, and goes to stderr."""
    if path.suffix != ".py" or not is_there(path):
        raise UserError(
            f"params.yaml: extra_methods.{shown(name)} names {shown(str(path), 200)}, which is not there as a Python "
            "file (.py); give it the path of your page."
        )
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{name}", path)
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    sys.modules[page.__name__] = page
    try:
        with refused(page.__name__), contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(page)
    except BaseException:
        del sys.modules[page.__name__]
        raise
    # a worker process has no such module, and gets its functions as they are
    cloudpickle.register_pickle_by_value(page)
    return page


@contextmanager
def refused(module: str) -> Iterator[None]:
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


def error_of_page(error: BaseException, method: str, file: str, module: str) -> MethodError | None:
    """What is said of an error that this page raised in its rounds; None if it was somebody else's.

    A UserError is the page's where a line of it raised it, and says itself what to do.
    """
    if unwritable(error) or interruption(error):
        return None
    path = str(sys.modules[module].__file__)
    if isinstance(error, UserError):
        raised_in = error.raised_in or traceback.extract_tb(error.__traceback__)[-1].filename
        return MethodError(str(error)) if raised_in == path else None
    line = line_of(error, path)
    notes = getattr(error, "__notes__", ())  # inside a step the step has said where (see tasks.running.step)
    where = f" {notes[0]}" if notes else f" ({Path(file).name}, line {line})" if line else ""
    return MethodError(
        f"{method} failed: {type(error).__name__}: {error}{where}; "
        f"mend {file}, and --resume goes on after the last whole round."
    )


def line_of(error: BaseException, path: str) -> int | None:
    """The line of this page where it happened, the innermost; None where no line of it was reached."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    return lines[-1] if lines else None

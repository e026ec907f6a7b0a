"""Start the workers of a command once, of the kind that params name, and end them with the command."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Literal

from silos.errors import UserError
from tasks.execution.worker_backends import Processes, Say, Workers

Kind = Literal["threads", "processes", "dask", "places"]


@contextmanager
def open_workers(
    kind: Kind,
    count: int,
    address: str | None = None,
    say: Say = print,
    make: Callable[[], Workers] | None = None,
) -> Iterator["Workers"]:
    """Open workers for the tasks inside the context, or reuse those that are open, so a comparison starts them once.

    No worker starts before the first task. `address` is that of Dask's scheduler. `say` receives messages for the user.
    `make` makes workers of a kind that this module does not know, such as places. UserError if Dask is not installed, and
    in a script that every worker would run again.
    """
    key = (kind, count, address)
    if key in _open:
        _open[key].next_run()
        yield _open[key]
        return
    check(kind)
    if kind in ("processes", "dask"):
        if address is None:
            _check_script(kind)
        _start_tracker()
    workers = _open[key] = _make(kind, count, address, say) if make is None else make()
    try:
        yield workers
    except BaseException:
        workers.kill()
        raise
    else:
        workers.close()
    finally:
        del _open[key]


def check(kind: Kind) -> None:
    """Raise UserError if the packages of this kind are not installed."""
    if kind == "dask" and not find_spec("prefect_dask"):
        raise UserError(
            "params.yaml: runner.kind: got dask, which is not installed, expected an installed kind. Install it "
            "with `pip install -c constraints.txt -e '.[dask]'` in the checkout of siloflow, or use processes."
        )


def _check_script(kind: Kind) -> None:
    """Raise UserError for a script without a check of `__main__`: workers import the script, and would run it."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:  # typed, a notebook, or started by `python -m`
        return
    try:
        guarded = "__main__" in Path(file).read_text(errors="replace")
    except OSError:  # workers cannot read it either
        return
    if not guarded:
        raise UserError(
            f"{file}: got a script that would run again in each worker of runner.kind {kind}, expected a guarded "
            'one. Put its commands under `if __name__ == "__main__":`, or use threads.'
        )


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker before any worker, because its start would let blocked interrupts through.

    Its warnings are silenced, which it would print after a kill -9.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, "ignore:resource_tracker:UserWarning"]))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _make(kind: Kind, count: int, address: str | None, say: Say) -> Workers:
    if kind == "dask":  # imported here: Dask is an extra, and takes seconds
        from tasks.execution.dask_workers import DaskWorkers

        return DaskWorkers(count, say, address)
    return {"threads": Workers, "processes": Processes}[kind](count, say)


_open: dict[tuple, Workers] = {}

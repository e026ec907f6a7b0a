"""Kills a program before each of its changes to files, each time in a fresh copy of a folder.

Usage: python kill_steps.py TEMPLATE WORK PREPARATION PROGRAM

PREPARATION, imports as a rule, is executed once. Then for k = 0, 1, 2, ... TEMPLATE is copied to WORK/k. A forked process
executes PROGRAM there and is killed (SIGKILL) at its step k. The copy in which PROGRAM came to its end is the last.

A step is what Python reports to audit hooks: a rename, a removal, a new folder, a link. Opening a file for writing is two
steps: before the file is touched, and when it is there and still empty. What is below .dvc and .git is those programs' own.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
OWN = {".dvc", ".git"}


def main(template: str, work: str, preparation: str, program: str) -> None:
    """Forks a process a step, until one is not killed."""
    names: dict[str, object] = {}
    exec(preparation, names)
    step, killed = 0, True
    while killed:
        copy = shutil.copytree(template, Path(work) / str(step), symlinks=True)
        child = os.fork()
        if child == 0:
            os.chdir(copy)
            kill_at(step, Path(copy).resolve())
            exec(program, names)
            sys.stdout.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        killed = status == -signal.SIGKILL
        assert killed or status == 0, f"step {step} ended with {status}"
        step += 1


def kill_at(step: int, root: Path) -> None:
    """Ends this process at its change number `step`, counted from 0, to a file below `root`."""
    left = step

    def count() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def hook(event: str, arguments: tuple) -> None:
        opened = event == "open"
        if left < 0 or not (opened or event in CHANGES) or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if opened and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        path = Path(os.path.abspath(os.fsdecode(arguments[0])))  # noqa: PTH100 - links stay links
        if not path.is_relative_to(root) or OWN & {*path.relative_to(root).parts}:
            return
        count()
        if opened and left == 0:
            empty(path, arguments[2])
        if opened:
            count()

    def empty(path: Path, flags: int) -> None:
        """Leaves the file as opening it does, just before this process is killed."""
        nonlocal left
        left = -1  # the hook is called for this, too
        os.close(os.open(path, flags, 0o666))
        left = 0

    sys.addaudithook(hook)


if __name__ == "__main__":
    main(*sys.argv[1:])

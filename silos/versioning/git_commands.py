"""Run git, and DVC's use of git, on the repository around a folder, whatever repository the environment names."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from silos.errors import UserError
from silos.io.atomic_io import write_bytes

# `git rev-parse --local-env-vars` without the configuration, where a container may allow a directory (safe.directory);
# and the ceiling, which would hide a repository that `has_repository` and DVC see. Git sets the first ones for its hooks.
_LOCAL_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
    "GIT_CEILING_DIRECTORIES",
)
_SAFE_DIRECTORY = re.compile(r"safe\.directory (.+)$", re.MULTILINE)  # the same in every language of git's messages


def run_git(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run git in the folder and return its exit code and output.

    Raises:
        FileNotFoundError: If git is not installed.
        UserError: If git refuses the repository because another user owns it.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _LOCAL_VARIABLES}
    command = ["git", "-C", str(root), *arguments]
    process = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,  # git must not wait for a passphrase
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="replace",
        env=environment,
    )
    refusal = _SAFE_DIRECTORY.search(process.stderr) if process.returncode else None
    if refusal:
        raise UserError(
            f"{root}: git refuses the repository, which another user owns. If you trust it, allow it with `git "
            f"config --global --add safe.directory {refusal[1]}`."
        )
    return process


def failure_reason(process: "subprocess.CompletedProcess[str]") -> str:
    """Return git's last line on stderr, but for its advice to search across file systems; empty if there is none."""
    lines = [line for line in process.stderr.strip().splitlines() if "GIT_DISCOVERY_ACROSS_FILESYSTEM" not in line]
    return lines[-1] if lines else ""


def has_repository(root: Path) -> bool:
    """Return whether the folder, or one above it, holds a git repository."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def ignore_folders(root: Path, names: Sequence[str]) -> list[str]:
    """Add the folders to `root`/.gitignore that git does not ignore, and return their names."""
    if not has_repository(root) or not shutil.which("git"):
        return []
    offered = [name for name in names if run_git(root, "check-ignore", "--quiet", f"{name}/any").returncode == 1]
    if offered:
        add_ignored(root, [f"/{name}/" for name in offered])
    return offered


def add_ignored(root: Path, lines: Sequence[str]) -> None:
    """Append lines to `root`/.gitignore, in any encoding, with the line ends that it has."""
    path = root / ".gitignore"
    before = path.read_bytes() if path.exists() else b""
    end = b"\r\n" if b"\r\n" in before else b"\n"
    start = before + end if before and not before.endswith(b"\n") else before
    write_bytes(path, start + b"".join(line.encode() + end for line in lines))


def is_offered(root: Path, path: str) -> bool:
    """Return whether `git add --all` would add this file or folder: it is in the repository, new and not ignored."""
    if not has_repository(root) or not shutil.which("git"):
        return False
    return run_git(root, "status", "--porcelain", "--", path).stdout.startswith("??")


def is_uncommitted(root: Path, path: str) -> bool:
    """Return whether git knows no version of this file, or another one."""
    if not has_repository(root) or not shutil.which("git"):
        return False
    return bool(run_git(root, "status", "--porcelain", "--", path).stdout)


@contextmanager
def no_local_variables() -> Iterator[None]:
    """Remove variables that name another repository, for libraries that read them in this process."""
    before = {name: os.environ.pop(name) for name in _LOCAL_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)

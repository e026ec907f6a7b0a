"""A folder whose data can be versioned: in a git and a DVC repository, of its own where it lies in none."""

import shutil
import subprocess
from pathlib import Path

from silos.versions.dvc_version import make_repository


def versioned(root: Path) -> list[str]:
    """Makes the repositories that `root` lacks and answers with which: git, where it is installed, and DVC."""
    root, made = Path(root).resolve(), []  # of a relative path the parents end at the working folder
    if not any((folder / ".git").exists() for folder in (root, *root.parents)) and shutil.which("git"):
        subprocess.run(["git", "init", "--quiet", str(root)], capture_output=True, check=True)
        made.append("git")
    if not any((folder / ".dvc").is_dir() for folder in (root, *root.parents)):
        make_repository(root)
        made.append("DVC")
    return made


def first_commit(root: Path) -> bool:
    """Commits all files that git does not ignore; False if git has no name and address of an author, or refuses."""
    git = ["git", "-C", str(root), "-c", "user.useConfigOnly=true"]
    for words in (["add", "--all"], ["commit", "--quiet", "--message", "Start the project"]):
        if subprocess.run([*git, *words], capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode:
            return False
    return True

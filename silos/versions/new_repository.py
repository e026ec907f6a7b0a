"""A folder whose data can be versioned: in a git and a DVC repository, of its own where it lies in none."""

import shutil
from pathlib import Path

from silos.versions.dvc_version import make_repository
from silos.versions.git_command import has_repository, run_git


def versioned(root: Path) -> list[str]:
    """Makes the repositories that `root` lacks and answers with which: git, where it is installed, and DVC."""
    root, made = Path(root).resolve(), []  # of a relative path the parents end at the working folder
    if not has_repository(root) and shutil.which("git"):
        run_git(root, "init", "--quiet").check_returncode()
        made.append("git")
    if not any((folder / ".dvc").is_dir() for folder in (root, *root.parents)):
        make_repository(root)
        made.append("DVC")
    return made


def first_commit(root: Path) -> bool:
    """Commits all files that git does not ignore; False if git has no name and address of an author, or refuses."""
    for words in (["add", "--all"], ["commit", "--quiet", "--message", "Start the project"]):
        if run_git(root, "-c", "user.useConfigOnly=true", *words).returncode:
            return False
    return True

"""Who started a run, and by which command: the tags of which MLflow makes `Created by` and `Source`."""

import re
import shlex
import sys
from pathlib import Path

from tasks.recording.addresses import masked

_MOST = 500  # characters
_PLACE = re.compile(r"(?<![\w:/.~*])~?/(?:[^/\s,'\"\]}]+/)+")  # of a file, by an absolute path; of an address nothing


def origin(commit: str) -> dict[str, str]:
    """As MLflow's own clients say it, but without a path of this machine; `commit`: `none`, or with `+changes` behind it."""
    from mlflow.tracking.context.git_context import GitRunContext
    from mlflow.tracking.context.registry import resolve_tags

    tags = dict(resolve_tags(ignore=[GitRunContext]))  # type: ignore[list-item]  # its commit is the command's own folder's
    tags["mlflow.source.name"] = _typed() or Path(tags.get("mlflow.source.name", "")).name
    if commit != "none":
        tags["mlflow.source.git.commit"] = commit.removesuffix("+changes")
    return {name: value for name, value in tags.items() if value}


def _typed() -> str:
    """`siloflow run fedavg --seed 1`; empty where another program has called. Of an absolute path stays the file's name."""
    program, *words = sys.argv or [""]
    typed = shlex.join(["siloflow", *(_PLACE.sub("", word) for word in words)])
    return masked(typed)[:_MOST] if Path(program).name == "siloflow" else ""

"""Measure the seconds from the project's folder to the list of clients, and to one client's rows."""

import json
import time
from pathlib import Path

from flows.project.project import Project
from silos.cohort import make_stacks, open_stack


def main() -> None:
    """Print {"seconds": ...} for the project in the current folder."""
    project = Project.open([], Path.cwd())
    start = time.perf_counter()
    silos = project.silos.federated()
    (stack,) = make_stacks(silos.select(silos.clients[-1:]), 1)
    open_stack(silos, stack, "train")
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()

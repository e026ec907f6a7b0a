"""Order and places of tests; their common fixtures are in `shared_fixtures.py`, which xdist's controller does not need."""

import gc
import os
from collections import Counter
from pathlib import Path

# NumPy reads it when it is imported; threads of several workers would wait for each other's, at twice the time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import psutil
import pytest
from hypothesis import HealthCheck, settings

# neither a busy machine nor the draw of a day is a failure
settings.register_profile(
    "siloflow", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("siloflow")

FIRST = "test_every_method.py"
LONG = {"end_to_end", "test_docs.py", "test_published_tables.py"}
FAST_EXAMPLES = 12  # of a property, where `make test` runs


MEMORY_DISK = Path("/dev/shm")
NEEDED_MEMORY = 8 * 2**30  # bytes; all folders of the whole suite are a fourth of it


def pytest_configure(config: pytest.Config) -> None:
    """Keeps tests' folders in memory, draws fewer examples of each property for `make test`, and registers fixtures."""
    gc.disable()  # what is imported and collected stays: to look through it again and again takes seconds
    if fits_in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    if config.option.markexpr == "not slow":
        settings.register_profile("fast", settings.get_profile("siloflow"), max_examples=FAST_EXAMPLES)
        settings.load_profile("fast")
    is_controller = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not is_controller:  # which would import for seconds before its workers start
        config.pluginmanager.import_plugin("tests.shared_fixtures")


def fits_in_memory() -> bool:
    """Return whether a memory disk has room: on others each `fsync` of a database or of a checkpoint takes milliseconds."""
    if not os.access(MEMORY_DISK, os.W_OK):
        return False
    disk = os.statvfs(MEMORY_DISK)
    free = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available)
    return free > NEEDED_MEMORY and not disk.f_flag & getattr(os, "ST_NOEXEC", 0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks cases that `sample` leaves to `make test-all`, deselects `services`, and puts files that take long first.

    So no worker of xdist is left alone with a long file at the end. `FIRST` waits for nothing that end-to-end tests make
    once for all workers, while another worker makes it.
    """
    slow = set() if "not slow" in config.option.markexpr else {i.path for i in items if i.get_closest_marker("slow")}
    seen: Counter[str] = Counter()
    for item in items:
        if sample := item.get_closest_marker("sample"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % sample.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1

    if "services" not in config.option.markexpr:  # they need PostgreSQL, which `make services` has
        services = [item for item in items if item.get_closest_marker("services")]
        config.hook.pytest_deselected(items=services)
        items[:] = [item for item in items if item not in services]

    def order(item: pytest.Item) -> tuple[bool, bool]:
        return item.path.name != FIRST, LONG.isdisjoint(item.path.parts) and item.path not in slow

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """Keeps modules and collected tests out of every garbage collection that follows: they stay to the end."""
    gc.freeze()
    gc.enable()

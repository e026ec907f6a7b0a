"""A process does not take the machine's memory for its own where it is confined to less."""

import psutil
import pytest

from silos import cohort
from silos.io.memory_and_disk import free_bytes

MIB = 1024**2
VERSION_2 = ("0::/user/job", "", "memory.max", "memory.current", "inactive_file")
VERSION_1 = (
    "4:cpu,cpuacct:/\n8:memory:/user/job",
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


@pytest.fixture(params=[VERSION_2, VERSION_1], ids=["version 2", "version 1"])
def confined(request, tmp_path):
    """Confines the process to so many bytes in a group of its own or in one around it."""
    groups, controller, limit, usage, cache = request.param
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{groups}\n")

    def confine(place, most, taken, cached=0):
        folder = tmp_path / "sys" / "fs" / "cgroup" / controller / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text(f"{taken}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{cache} {cached}\n")
        return tmp_path

    return confine


@pytest.mark.parametrize("place", ["user/job", "user", "."])
def test_what_is_left_is_that_of_the_narrowest_group(place, confined):
    confined("user/job", "max", 10 * MIB)
    assert free_bytes(confined(place, 200 * MIB, 50 * MIB)) == 150 * MIB
    assert free_bytes(confined(place, 200 * MIB, 201 * MIB)) == 0
    assert free_bytes(confined(place, 200 * MIB, 201 * MIB, 30 * MIB)) == 29 * MIB


def test_without_a_limit_it_is_what_the_machine_has_free(confined, tmp_path):
    for root in (confined("user/job", "max", 10 * MIB), tmp_path / "no Linux"):
        assert 0 < free_bytes(root) <= psutil.virtual_memory().total


def test_rows_kept_in_memory_are_a_small_share_of_it():
    assert 0 < cohort.CACHE_BYTES <= psutil.virtual_memory().total / 16

"""A process does not take the machine's memory for its own where it is confined to less."""

import psutil
import pytest

from silos import cohort
from silos.capacity import available

MIB = 1024**2
VERSION_2 = ("0::/user/job", "", "memory.max", "memory.current")
VERSION_1 = ("4:cpu,cpuacct:/\n8:memory:/user/job", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.fixture(params=[VERSION_2, VERSION_1], ids=["version 2", "version 1"])
def confined(request, tmp_path):
    """Confines the process to so many bytes in a group of its own or in one around it."""
    groups, controller, limit, usage = request.param
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{groups}\n")

    def confine(place, most, taken):
        folder = tmp_path / "sys" / "fs" / "cgroup" / controller / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text(f"{taken}\n")
        return tmp_path

    return confine


@pytest.mark.parametrize("place", ["user/job", "user", "."])
def test_what_is_left_is_that_of_the_narrowest_group(place, confined):
    confined("user/job", "max", 10 * MIB)
    assert available(confined(place, 200 * MIB, 50 * MIB)) == 150 * MIB
    assert available(confined(place, 200 * MIB, 201 * MIB)) == 0


def test_without_a_limit_it_is_what_the_machine_has_free(confined, tmp_path):
    for root in (confined("user/job", "max", 10 * MIB), tmp_path / "no Linux"):
        assert 0 < available(root) <= psutil.virtual_memory().total


def test_rows_kept_in_memory_are_a_small_share_of_it():
    assert 0 < cohort.CACHE_BYTES <= psutil.virtual_memory().total / 16

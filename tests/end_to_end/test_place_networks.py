"""Three places in network namespaces: the bits of one machine, no way from place to place, and nothing private outside."""

import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.place_networks import (
    HUB,
    KINDS,
    PORT,
    SITES,
    SMALL,
    SeparateMachines,
    leaks,
    machines,
    private_needles,
    settings_of,
    why_not,
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "namespaces work")]

PUT = """
import sys
from pathlib import Path
from tasks.remote.enrolment import open_membership
plane = open_membership(Path()).plane
plane.put(sys.argv[1], Path("planted").read_bytes())
plane.drop(sys.argv[1])
"""


@pytest.fixture(scope="module")
def separate(databases: Path, server: str) -> Iterator[SeparateMachines]:
    with machines(databases, server) as made:
        yield made


@pytest.fixture(scope="module")
def compared(separate: SeparateMachines) -> tuple[Any, Any]:
    """What the coordinator's comparison and diagnosis answer."""
    return separate.type("coordinator", "compare", *KINDS, *SMALL, *settings_of(KINDS)), separate.type(
        "coordinator", "diagnose"
    )


def test_methods_and_a_diagnosis_over_networks_have_the_bits_of_one_machine(
    separate: SeparateMachines, compared: Any
) -> None:
    over_places, diagnosis = compared
    separate.put_together()
    here = ("--set", "runner.kind=threads")
    on_one = separate.type("together", "compare", *KINDS, *SMALL, *settings_of(KINDS), *here)
    found = separate.results("coordinator", over_places)
    assert found.keys() == {*KINDS}
    assert found == separate.results("together", on_one)
    assert over_places["baseline"] == on_one["baseline"]
    again = separate.type("together", "diagnose", *here)
    assert (again["pairs"], again["groups"]) == (diagnosis["pairs"], diagnosis["groups"])


def test_a_place_listens_on_no_port_and_reaches_the_coordinator_alone(
    separate: SeparateMachines, compared: Any
) -> None:
    networks = separate.networks
    assert any(f"{HUB}:{PORT}" in line for line in networks.listening("coordinator"))
    for place in SITES:
        assert separate.processes[place].poll() is None
        assert networks.listening(place) == []
        assert networks.connects(place, HUB, PORT) == ""
    south = networks.addresses["south"]
    listen = "import socket; s = socket.create_server(('', 7)); print(1, flush=True); input()"
    command = networks.inside("south", sys.executable, "-c", listen)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline()
        assert networks.connects("coordinator", south, 7) == ""
        assert networks.connects("north", south, 7) == "TimeoutError"
        listener.kill()


def test_no_row_word_or_kept_weight_crosses_the_plane_or_is_at_the_coordinator(
    separate: SeparateMachines, compared: Any
) -> None:
    needles = private_needles(separate.home)
    assert any("of fedper" in name for name in needles)
    assert leaks(needles, *outside(separate)) == []
    assert sum(file.stat().st_size for file in separate.captured.iterdir()) > 10**5


def over_the_plane(separate: SeparateMachines, content: bytes) -> None:
    (separate.home / "north" / "planted").write_bytes(content)
    key = f"from/north/{'0' * 32}-00000001"
    command = separate.networks.inside("north", sys.executable, "-c", PUT, key)
    subprocess.run(command, cwd=separate.home / "north", check=True)


def in_a_database(separate: SeparateMachines, content: bytes) -> None:
    with closing(sqlite3.connect(separate.home / "coordinator" / "planted.db")) as database:
        database.execute("create table rows (content blob)")
        database.execute("insert into rows values (?)", [content])
        database.commit()


def in_an_archive(separate: SeparateMachines, content: bytes) -> None:
    with zipfile.ZipFile(separate.home / "coordinator" / "planted.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model", content)


@pytest.mark.parametrize("plant", [over_the_plane, in_a_database, in_an_archive])
def test_a_planted_row_is_found(
    separate: SeparateMachines, compared: Any, plant: Callable[[SeparateMachines, bytes], None]
) -> None:
    line = (separate.home / "north" / "visits.csv").read_text().splitlines()[1].split(",")
    row = np.array(line[3:5], float)
    plant(separate, b" ".join([row.tobytes(), row.astype("<f4").tobytes(), ",".join(line).encode()]))
    needles = private_needles(separate.home)
    found = {name.partition(" in ")[0] for name in leaks(needles, *outside(separate))}
    for path in [*(separate.home / "coordinator").glob("planted*"), *separate.captured.iterdir()]:
        if path.name.startswith("planted") or line[1].encode() in path.read_bytes():
            path.unlink()
    about = {name for name in needles if name.startswith(f"{line[1]}:") and "float32 text" not in name}
    assert found >= about | {f"{line[0]}: {line[1]}", f"{line[0]}: {line[2]}"}


def outside(separate: SeparateMachines) -> list[Path]:
    """All that lies at the coordinator: Prefect's and MLflow's databases, logs, runs, and what crossed the plane."""
    return [separate.home / "coordinator", separate.captured]

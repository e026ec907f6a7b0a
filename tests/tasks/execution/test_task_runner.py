"""The one way to clients."""

from pathlib import Path

from tasks.execution import task_runner


def test_clients_are_reached_by_map_clients_alone():
    """So what every answer is held to is written once, and another way to clients is built in one place."""
    root = Path(task_runner.__file__).parents[2]
    sources = {
        path: path.read_text(encoding="utf-8") for room in ("flows", "tasks") for path in (root / room).rglob("*.py")
    }
    assert [path.stem for path, text in sources.items() if ".map_cohorts(" in text] == ["task_runner"]

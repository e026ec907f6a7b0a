"""MLflow's database is there whole, or not at all."""

import multiprocessing
import sqlite3
import threading
from pathlib import Path

from tasks.track import connect


def test_a_process_killed_while_it_makes_the_database_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mlflow.db"
    maker = multiprocessing.get_context("spawn").Process(target=connect, args=(f"sqlite:///{path}",))
    maker.start()
    while maker.is_alive() and not list(path.parent.glob(".mlflow.db.*.new")):
        maker.join(0.01)
    maker.join(0.3)  # MLflow makes its tables now
    maker.kill()
    maker.join()
    tables = _tables(path)
    assert tables == set() or "runs" in tables
    connect(f"sqlite:///{path}").search_experiments()
    assert "runs" in _tables(path)


def test_two_that_make_the_database_at_once_end_with_one(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    threads = [threading.Thread(target=connect, args=(f"sqlite:///{path}",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connect(f"sqlite:///{path}").create_experiment("first")
    assert [p.name for p in tmp_path.glob(".*")] == []


def _tables(path: Path) -> set[str]:
    if not path.exists():
        return set()
    with sqlite3.connect(path) as database:
        return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}

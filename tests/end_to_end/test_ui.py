"""The pages of a finished comparison."""

import json
import signal
import time
import urllib.request

import psutil


def test_both_servers_answer_on_loopback_alone_and_are_gone_with_the_command(finished, ports, tmp_path, living, until):
    folder = finished.folder.copy(tmp_path / "project")
    mlflow, prefect = ports
    with (tmp_path / "screen.txt").open("w+") as screen:
        process = folder.start("ui", "--mlflow-port", str(mlflow), "--prefect-port", str(prefect), out=screen)
        said = until(screen.name, "Press ctrl-C to end both", process)
        assert "newest comparison" in said
        search = json.dumps({"max_results": 9}).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{mlflow}/api/2.0/mlflow/experiments/search", search, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            experiments = {e["name"]: e for e in json.load(answer)["experiments"]}
        number = experiments[json.loads((folder.path / "runs" / "mlflow.json").read_text())["name"]]["experiment_id"]
        for view in ("siloflow", "comparisons"):
            page = f"/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey={view}  ("
            assert f"http://127.0.0.1:{mlflow}{page}" in said
        urllib.request.urlopen(f"http://127.0.0.1:{prefect}/api/health", timeout=60).close()
        heard = listening(process.pid)
        assert {address for address, _ in heard} == {"127.0.0.1"}
        assert {mlflow, prefect} <= {port for _, port in heard}
        assert not [command for command in living(folder.path) if "mlflow.db" in command]  # it might hold a password
        process.send_signal(signal.SIGINT)
        process.wait(120)
    end = time.monotonic() + 60
    while living(folder.path) and time.monotonic() < end:
        time.sleep(0.1)
    assert living(folder.path) == []


def listening(pid: int) -> set[tuple[str, int]]:
    """Address and port of every socket on which a process or one of its descendants listens."""
    there = psutil.Process(pid)
    found = [c for p in (there, *there.children(recursive=True)) for c in p.net_connections("inet")]
    return {(c.laddr.ip, c.laddr.port) for c in found if c.status == psutil.CONN_LISTEN}

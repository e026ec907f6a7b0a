"""Kills `siloflow compare` at random moments and lets `--resume` finish it: python tests/end_to_end/kill_many.py --kills 10

Each comparison must end with the weights of one that nobody disturbed, with every MLflow step there once, and leave no
process behind. One line a comparison; exit code 1 if any broke its promise. `--chain 3` kills each one three times;
`--places` puts the first kills where files are being made, in each step from the partition to the comparison's figure or in
those that are named;
`--set runner.kind=processes --set runner.workers=2` and the like go to the killed commands, not to the undisturbed one.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.metrics.client_metrics import CLIENT_METRICS

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "siloflow"
TYPED = ["compare", "fedavg", "local_only", "--seeds", "0,1", "--json", "--set"]
PLACES = {  # what is there while, or just after, a step does its work
    "partition": ".data-*.new",
    "training": "runs/*/*/journal/000002.json",
    "checkpoint": "runs/*/*/.checkpoint.safetensors.*",
    "tracking": "runs/*/*/delivered.json",
    "comparison": "runs/*/comparison.png",
}
rounds = 4  # of each run; more rounds move kills from start-up into training
more: list[str] = []  # settings of the killed commands alone
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "DVC_"))}


def main() -> int:
    """Every comparison on a fresh copy of the same partitioned folder."""
    global rounds
    arguments = _arguments()
    rounds = arguments.rounds
    more.extend(part for setting in arguments.set for part in ("--set", setting))
    dice = random.Random(arguments.seed)
    home = Path(tempfile.mkdtemp(prefix="siloflow-kill-"))
    try:
        template = arguments.template or _partition(home / "template")
        if arguments.expected:
            expected, life = _weights(json.loads(arguments.expected.read_text())), arguments.life
        else:
            expected, life = _undisturbed(shutil.copytree(template, home / "undisturbed"))
        if more:
            same, life = _undisturbed(shutil.copytree(template, home / "elsewhere"), more)
            assert same == expected, f"{' '.join(more)} has other weights"
        print(f"undisturbed: {life:.1f} s", flush=True)
        broken = 0
        moments: list[float | str] = [life * (i + dice.random()) / arguments.kills for i in range(arguments.kills)]
        if arguments.places is not None:
            places = arguments.places or list(PLACES)
            moments[: len(places)] = places[: len(moments)]
        for at in range(0, arguments.kills, arguments.chain):
            folder = Path(shutil.copytree(template, home / f"killed-{at}"))
            chain = moments[at:][: arguments.chain]
            kills = [_kill(folder, moment, resume=i > 0) for i, moment in enumerate(chain)]
            wrong = _resume(folder, expected, partition="partition" in chain)
            broken += bool(wrong)
            print(f"{', '.join(kills)}: {'; '.join(wrong) or 'resumed, as undisturbed'}", flush=True)
        print(f"{arguments.kills} kills, {broken} comparisons broke their promise")
        return int(broken > 0)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=rounds, help="of each run")
    parser.add_argument("--chain", type=int, default=1, help="kills of one comparison, one after another")
    parser.add_argument("--places", nargs="*", choices=PLACES, help="the first kills are one in each step")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="where it is computed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--template", type=Path, help="a partitioned folder; made if not given")
    parser.add_argument("--expected", type=Path, help="what the undisturbed command printed; it is run if not given")
    parser.add_argument("--life", type=float, default=10.0, help="how long that took, in seconds")
    return parser.parse_args()


def _typed() -> list[str]:
    return [*TYPED, f"training.rounds={rounds}"]


def _partition(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(ROOT / "params.yaml", folder)
    subprocess.run([COMMAND, "partition"], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    shutil.rmtree(folder / ".prefect")  # the killed commands make their databases themselves
    return folder


def _undisturbed(folder: Path, where: Sequence[str] = ()) -> tuple[dict[str, str], float]:
    """The weights of each run, and the command's life in seconds."""
    start = time.monotonic()
    done = subprocess.run([COMMAND, *_typed(), *where], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    return _weights(json.loads(done.stdout)), time.monotonic() - start


def _kill(folder: Path, moment: float | str, resume: bool) -> str:
    """kill -9 after so many seconds, or in this step; says how far the command was."""
    typed = [*_typed(), *more, *(["--resume"] if resume else [])]
    if moment == "partition":
        typed = ["partition"]
    start, there = time.monotonic(), set(_files(folder, moment))
    with (folder / "killed.txt").open("a") as screen:
        process = subprocess.Popen([COMMAND, *typed], cwd=folder, env=ENVIRONMENT, stdout=screen, stderr=screen)
        while process.poll() is None and not (
            time.monotonic() - start >= moment if isinstance(moment, float) else set(_files(folder, moment)) - there
        ):
            time.sleep(0.0005)
        process.kill()
        process.wait()
    after = time.monotonic() - start
    left = _left_behind(folder)
    journals = len(list(folder.glob("runs/*/*/journal/*.json")))
    checkpoints, results = (len(list(folder.glob(f"runs/*/*/{name}"))) for name in ("checkpoint.*", "result.json"))
    ended = "killed" if process.returncode == -signal.SIGKILL else "ended"
    orphans = f", LEFT {left}" if left else ""
    where = f"in {moment}, " if isinstance(moment, str) else ""
    return f"{ended} {where}at {after:4.1f} s ({checkpoints} runs begun, {results} done, {journals} rounds){orphans}"


def _files(folder: Path, moment: float | str) -> list[Path]:
    """What tells that a command is in this step."""
    return list(folder.glob(PLACES[moment])) if isinstance(moment, str) else []


def _resume(folder: Path, expected: dict[str, str], partition: bool) -> list[str]:
    """`--resume` to the end, after `partition` if that was killed; what is not as it should be."""
    for typed in [["partition"]] * partition + [[*_typed(), *more, "--resume"]]:
        done = subprocess.run(
            [COMMAND, *typed], cwd=folder, env=ENVIRONMENT, check=False, capture_output=True, text=True
        )
    if done.returncode:
        return [f"--resume ended with {done.returncode}: {done.stderr.strip()[-2000:]}"]
    found = json.loads(done.stdout)
    wrong = [f"{run} has other weights" for run, sha in _weights(found).items() if expected[run] != sha]
    wrong += [f"left behind: {process}" for process in _left_behind(folder)]
    return wrong + _wrong_in_mlflow(folder, found)


def _weights(found: dict[str, Any]) -> dict[str, str]:
    return {f"{run['method']}-seed{run['seed']}": run["weights_sha256"] for run in found["runs"]}


def _wrong_in_mlflow(folder: Path, found: dict[str, Any]) -> list[str]:
    """One finished run a method and seed below the comparison; every metric with each step once."""
    from tasks.tracking.mlflow_logging.connection import connect

    client = connect(f"sqlite:///{folder / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment(client.get_run(found["runs"][0]["mlflow_run_id"]).info.experiment_id)
    runs = client.search_runs([experiment.experiment_id])
    kept = [run for run in runs if run.data.tags["kind"] == "run"]
    wrong = [] if len(runs) == len(kept) + 1 else [f"MLflow has {len(runs) - len(kept)} times the comparison"]
    if sorted(run.info.run_id for run in kept) != sorted(run["mlflow_run_id"] for run in found["runs"]):
        wrong.append(f"MLflow has {len(kept)} runs for {len(found['runs'])}")
    models = client.search_logged_models([experiment.experiment_id])
    if len(models) != len({model.source_run_id for model in models}):
        wrong.append("a model is logged twice")
    for run in kept:
        if run.info.status != "FINISHED":
            wrong.append(f"{run.info.run_name} is {run.info.status}")
        for name in (name for name in run.data.metrics if not name.startswith("system/")):
            steps = [metric.step for metric in client.get_metric_history(run.info.run_id, name)]
            once = "uncertainty/" in name or name.partition("/")[0] in CLIENT_METRICS  # of the reported round
            if steps != ([rounds] if once else list(range(1, rounds + 1))):
                wrong.append(f"{run.info.run_name}: {name} has steps {steps}")
    return wrong


def _left_behind(folder: Path, patience: float = 5.0) -> list[str]:
    """Commands of processes that still work in the folder after some seconds."""
    end = time.monotonic() + patience
    while (found := _processes(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def _processes(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve().is_relative_to(folder):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100])
        except OSError:
            continue  # it ended, or is not ours
    return [command for command in found if command]


if __name__ == "__main__":
    sys.exit(main())

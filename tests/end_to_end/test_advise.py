"""`siloflow advise`, as typed: a race on validation rows, a proof on fresh seeds, and advice in sentences."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.experiments.advice.advice_text import NAMES
from silos.io.locks import exclusive_lock

pytestmark = pytest.mark.slow

TYPED = ["advise", "ditto", "--minutes", "30", "--set", "training.rounds=3"]


@pytest.fixture(scope="module")
def advised(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two processes advise that race and prove without an interruption."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("end_to_end") / "advise", server)
    return folder, folder.type(*TYPED, "--set", "runner.parallel_runs=2", "--json")


def _rounds(folder, advice):
    runs = folder.path / "runs" / advice["experiment"]
    return {run.name: len(list((run / "journal").glob("*.json"))) for run in runs.glob("setting*-seed0")}


def test_the_better_third_trains_on_and_the_references_to_the_end(advised):
    folder, answer = advised
    advice = answer.json
    rounds, race = _rounds(folder, advice), advice["race"]
    assert race["rungs"] == [1, 3]  # test_race has more
    assert set(rounds.values()) == {1, 3}
    assert len(rounds) == 20  # 4 rates of three references, and 8 settings of ditto
    assert {method for method, *_ in race["alive"]} >= {"fedavg", "local_only", "pooled"}
    assert set(race["dropped"].values()) <= {"behind", "time"}
    assert len(race["alive"]) + len(race["dropped"]) == 20


def test_seeds_and_rows_of_the_proof_took_no_part_in_the_race(advised):
    advice = advised[1].json
    proved = advice["comparison"]
    seeds = {run["seed"] for run in proved["runs"]}
    assert advice["race_seed"] == 0
    assert len(seeds) >= 2
    assert 0 not in seeds
    assert {run["method"] for run in proved["runs"]} >= {"fedavg", "local_only", "pooled"}
    chosen = {one["method"]: one["settings"] for one in advice["proved"]}
    assert chosen[advice["advised"]] == advice["settings"]


def test_costs_are_those_of_the_proofs_runs(advised):
    advice = advised[1].json
    sent = {(run["method"], run["seed"]): run["bytes"]["up"] for run in advice["comparison"]["runs"]}
    for method, cost in advice["costs"].items():
        of_seeds = [count for (name, _), count in sent.items() if name == method]
        assert cost["sent"] == pytest.approx(sum(of_seeds) / len(of_seeds) / 9)  # silos
        assert cost["keeps_state"] == (method in ("local_only", "ditto"))
    assert advice["costs"]["fedavg"]["sent"] > advice["costs"]["local_only"]["sent"]


def test_no_line_claims_what_an_interval_does_not_show(advised):
    advice = advised[1].json
    for difference in advice["differences"]:
        if "pooled" in (difference["first"], difference["second"]):
            continue
        first, second = (NAMES.get(difference[side], difference[side]) for side in ("first", "second"))
        better, worse = (first, second) if difference["difference"] >= 0 else (second, first)
        certain = difference["low"] > 0 or difference["high"] < 0
        start = (
            f"{better} is better than {worse}: +"
            if certain
            else f"Whether {better} is better than {worse} is not certain:"
        )
        assert [line.lower().startswith(start.lower()) for line in advice["lines"]].count(True) == 1


def test_a_finished_race_is_not_run_again_and_is_written_into_params(advised):
    folder, answer = advised
    advice, before = answer.json, folder.path.joinpath("params.yaml").read_text()
    again = folder.type(*TYPED, "--resume", "--apply")
    assert "race" not in again.err
    assert advice["lines"][0].split(" (")[0] in again.out
    after = folder.path.joinpath("params.yaml").read_text()
    params = yaml.safe_load(after)
    assert params["comparison"]["methods"][0] == advice["advised"]
    (rate,) = [one.partition("=")[2] for one in advice["settings"] if one.startswith("training.optimiser")]
    assert params["training"]["optimiser"]["learning_rate"] == float(rate)
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    for line in added:
        assert f"+{line}" in again.err
    with exclusive_lock(folder.path / "runs" / advice["experiment"]):
        assert "got a second process, expected one at a time" in folder.type(*TYPED, "--resume", code=2).err
    assert "params.yaml has this advice already" in folder.type(*TYPED, "--resume", "--apply").err
    folder.path.joinpath("params.yaml").write_text(before)


def test_one_process_whose_race_is_killed_comes_to_the_advice_of_two_that_nothing_interrupts(
    advised: Any, partitioned: Any, server: str, tmp_path: Path
) -> None:
    two = advised[1].json
    expected = two["race"]
    folder = partitioned[0].copy(tmp_path / "killed", server)
    _kill_at(folder, lambda race: _legs(race) >= 24)
    race = _kill_at(folder, lambda race: race["rung"] == len(expected["rungs"]), minutes="31")  # before the proof
    for key in ("rungs", "alive", "dropped"):
        assert race[key] == expected[key]
    # rounds and score; 30 minutes leave nothing out for lack of time
    scores = [{name: leg[:2] for name, leg in each["legs"].items()} for each in (race, expected)]
    assert scores[0] == scores[1]
    one = folder.type(*(typed for typed in TYPED if typed not in ("--minutes", "30")), "--resume", "--json").json
    assert one["minutes"] == 31  # those given last
    assert one["seconds"] >= one["race"]["before"] + one["race"]["seconds"]
    weights = [{(r["method"], r["seed"]): r["weights_sha256"] for r in a["comparison"]["runs"]} for a in (one, two)]
    assert weights[0] == weights[1]
    assert (one["advised"], one["settings"], one["differences"]) == (
        two["advised"],
        two["settings"],
        two["differences"],
    )


def _kill_at(folder, reached, minutes="30"):
    """Start the command or resume it, kill it when its race is this far, and return the race."""
    typed = [minutes if part == "30" else part for part in TYPED]
    process = folder.start(*typed, "--resume", PREFECT_API_URL=folder.server)
    while True:
        assert process.poll() is None, process.communicate()
        races = list(folder.path.glob("runs/advise-*/race.json"))
        race = json.loads(races[0].read_text()) if races else {"legs": {}, "rung": 0}
        if reached(race):
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return race
        time.sleep(0.02)


def _legs(race):
    """Return how many legs have been run: of the first rung a candidate one, and more of those that went on."""
    return sum({1: 1, 3: 2, 9: 3}[leg[0]] for leg in race["legs"].values())


def test_what_cannot_be_advised_is_said_before_anything_runs(advised):
    folder = advised[0]
    refused = folder.type(*TYPED[:2], "--minutes", "0", code=2)
    assert "--minutes: got 0, expected more than 0" in refused.err
    refused = folder.type("advise", "nonsense", code=2)
    assert "method: got 'nonsense', expected a known method" in refused.err
    for name, setting, sentence in (
        ("alone", "data.scheme=[{kind: equal, clients: 1}]", "data: got 1 client that is scored, expected at least 2"),
        ("unvalidated", "data.split.validation=0", "data.split.validation: got no validation rows, expected some"),
    ):
        changed = ["--set", setting, "--set", f"data.name={name}"]
        folder.type("partition", *changed)
        assert sentence in folder.type("advise", *changed, code=2).err


def test_minutes_that_cannot_suffice_are_refused_before_the_silos_are_diagnosed(
    partitioned: Any, server: str, tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project", server)
    before = {*folder.path.glob("runs/diagnose-*")}
    typed = ["advise", "ditto", "--set", "training.rounds=60"]
    refused = folder.type(*typed, "--minutes", "0.01", code=2)
    assert "times 3 rounds of fedavg" in refused.err
    assert "minutes: got 0.01, expected at least " in refused.err
    assert "--resume`" in refused.err
    assert {*folder.path.glob("runs/diagnose-*")} == before
    assert not [*folder.path.glob("runs/advise-*/race.json")]

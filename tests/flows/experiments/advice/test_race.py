"""The race: who trains on, for how long, and how often the best is lost."""

import json
import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.experiments.advice.race import ALPHA, Candidate, Leg, Pace, Race, Trained, in_turn, run_race, rungs_of
from flows.experiments.comparison.tuner import Score
from models.metrics.paired_difference import Difference, Stratum, difference

SHARED, ALONE, BOUND = "fedavg", "local_only", "pooled"


class Track:
    """A made race: each candidate is right on a row with a chance that grows with rounds."""

    def __init__(self, skills: dict[str, float], rows: int = 300, seed: int = 0, seconds: float = 1.0) -> None:
        self.skills, self.rows, self.seconds = skills, rows, seconds
        self.ease = np.random.default_rng(seed).uniform(size=rows)
        self.trained: list[tuple[str, int]] = []
        self.saved: list[dict] = []
        self.stop_after = math.inf

    def right(self, candidate: Candidate, rounds: int) -> np.ndarray:
        return self.ease < self.skills[candidate.method] * (1 - 0.5 / rounds)

    def train(self, candidate: Candidate, rounds: int) -> Leg:
        if len(self.trained) >= self.stop_after:
            raise KeyboardInterrupt
        self.trained.append((candidate.name, rounds))
        if math.isnan(self.skills[candidate.method]):
            return Leg(rounds, None, self.seconds, "the loss is no number")
        self.rounds = rounds
        return Leg(rounds, Score(float(self.right(candidate, rounds).mean()), 0.0), self.seconds)

    def compare(self, first: Candidate, second: Candidate, level: float) -> Difference:
        both = [self.right(c, self.rounds).astype(float) for c in (first, second)]
        return difference([Stratum.from_differences((both[0] - both[1])[None])], level)

    def run(self, race: Race, budget: float = math.inf) -> Race:
        return run_race(
            race,
            lambda _: budget,
            (SHARED, ALONE, BOUND),
            in_turn(self.train),
            self.compare,
            lambda d: d,
            lambda race: self.saved.append(race.as_json()),
        )


def field(*methods: str) -> list[Candidate]:
    return [Candidate(m, (f"method.{m}.x=1",), 0, m == BOUND) for m in methods]


def test_the_better_third_trains_on_and_references_always():
    skills = {SHARED: 0.3, ALONE: 0.2, BOUND: 0.99, **{f"m{i}": 0.5 + 0.04 * i for i in range(10)}}
    track = Track(skills)
    race = track.run(Race(rungs_of(50), field(*skills)))
    assert race.rungs == [6, 17, 50]
    finalists = {name for name, rounds in track.trained if rounds == 50}
    assert {"fedavg 0", "local_only 0", "pooled 0", "m9 0"} <= finalists
    assert race.ranking()[0].method == "m9"
    assert race.best_of(BOUND).method == BOUND
    assert "m0 0" in race.dropped
    assert len(track.trained) == len(set(track.trained))  # no leg twice
    assert set(race.dropped.values()) <= {"behind", "time"}
    assert race.dropped["m0 0"] == "behind"  # 300 rows show 36 points


@pytest.mark.parametrize(("seconds", "ends"), [(10.0, 50), (34.0, 6), (200.0, 6)])
def test_a_bound_trains_on_only_if_its_last_round_is_in_time(seconds, ends):
    track = Track({SHARED: 0.5, ALONE: 0.4, BOUND: 0.9, "m": 0.6})
    train = track.train

    def slow(candidate: Candidate, rounds: int) -> Leg:
        leg = train(candidate, rounds)
        return Leg(leg.rounds, leg.score, seconds if candidate.bound and rounds == 6 else leg.seconds)

    track.train = slow
    race = track.run(Race(rungs_of(50), field(SHARED, ALONE, "m", BOUND)), 300.0)
    assert race.legs["pooled 0"].rounds == ends
    assert race.dropped == ({} if ends == 50 else {"pooled 0": "time"})
    assert race.legs["m 0"].rounds == 50


def test_a_candidate_without_a_score_is_dropped_with_its_reason():
    track = Track({SHARED: 0.5, ALONE: 0.4, "broken": math.nan})
    race = track.run(Race(rungs_of(9), field(SHARED, ALONE, "broken")))
    assert race.dropped == {"broken 0": "the loss is no number"}


def two_at_once(track: Track):
    """Train two at once: the one that started first ends first, unless it takes twice as long as the other."""

    def train_all(waiting, rounds):
        now, running = 0.0, []
        while True:
            while len(running) < 2 and (candidate := next(waiting, None)) is not None:
                leg = track.train(candidate, rounds)
                running.append((now + leg.seconds, candidate, leg))
            if not running:
                return
            running.sort(key=lambda one: one[0])
            end, candidate, leg = running.pop(0)
            yield Trained(candidate, leg, end - now)
            now = end

    return train_all


@settings(max_examples=30)
@given(st.integers(1, 40), st.floats(0, 60), st.integers(1, 60))
def test_two_at_once_race_more_candidates_in_the_same_time(number, budget, rounds):
    skills = {SHARED: 0.5, ALONE: 0.4, **{f"m{i}": 0.5 for i in range(number)}}
    raced = []
    for at_once in (1, 2):
        track = Track(skills)
        train = in_turn(track.train) if at_once == 1 else two_at_once(track)
        race = run_race(
            Race(rungs_of(rounds), field(*skills)),
            lambda _, budget=budget: budget,
            (SHARED, ALONE),
            train,
            track.compare,
            lambda d: d,
            lambda _: None,
            at_once,
        )
        assert race.seconds <= budget + 3 * len(race.rungs) + 1
        assert {"fedavg 0", "local_only 0"} <= {c.name for c in race.alive}
        assert len(race.alive) + len(race.dropped) == number + 2
        assert len(track.trained) == len(set(track.trained))
        raced.append(len(race.legs))
    assert raced[1] >= raced[0]


@settings(max_examples=30)
@given(st.integers(1, 40), st.floats(0, 60), st.integers(1, 60))
def test_the_time_is_kept_but_for_the_references(number, budget, rounds):
    skills = {SHARED: 0.5, ALONE: 0.4, **{f"m{i}": 0.5 for i in range(number)}}
    track = Track(skills)
    race = track.run(Race(rungs_of(rounds), field(*skills)), budget)
    always = 2 * len(race.rungs)
    leader = len(race.rungs)
    assert race.seconds <= max(budget, 0) + always + leader + 1
    assert {"fedavg 0", "local_only 0"} <= {c.name for c in race.alive}
    assert len(race.alive) + len(race.dropped) == number + 2


def test_a_race_goes_on_where_it_was_saved():
    skills = {SHARED: 0.5, ALONE: 0.4, **{f"m{i}": 0.4 + 0.05 * i for i in range(8)}}
    whole = Track(skills)
    expected = whole.run(Race(rungs_of(30), field(*skills))).as_json()
    for stop in range(1, len(whole.trained)):
        track = Track(skills)
        track.stop_after = stop
        with pytest.raises(KeyboardInterrupt):
            track.run(Race(rungs_of(30), field(*skills)))
        track.stop_after = math.inf
        assert track.run(Race.from_json(track.saved[-1])).as_json() == expected
        assert track.trained == whole.trained


def test_a_saved_race_is_the_race_in_every_field():
    legs = {"m 0": Leg(3, Score(0.5, 0.25), 7.5), "fedavg 0": Leg(1, None, 2.5, "diverged")}
    alive = [Candidate("m", ("method.m.x=1",), 2), Candidate(BOUND, (), 0, bound=True)]
    race = Race([1, 3], alive, legs, {"fedavg 0": "diverged"}, 1, 10.0, 4.0, 5.0, Pace(9.0, 0.5))
    empty = Race([], [])
    assert all(getattr(race, each.name) != getattr(empty, each.name) for each in fields(Race))
    for whole in (race, empty):
        assert Race.from_json(json.loads(json.dumps(whole.as_json()))) == whole


def test_the_best_is_seldom_dropped_as_behind():
    """Of 200 races of eight that are equally good, one in twenty may drop any as behind: 10, or 16 by chance."""
    lost = 0
    for seed in range(200):
        draws = np.random.default_rng(seed)
        outcomes = {f"m{i}": draws.uniform(size=200) < 0.7 for i in range(8)}

        def train(c, rounds, outcomes=outcomes):
            return Leg(rounds, Score(float(outcomes[c.method].mean()), 0.0), 0.0)

        def compare(a, b, level, outcomes=outcomes):
            d = outcomes[a.method].astype(float) - outcomes[b.method]
            return difference([Stratum.from_differences(d[None])], level)

        race = run_race(
            Race([1, 2], field(*outcomes)), lambda _: math.inf, (), in_turn(train), compare, lambda d: d, lambda _: None
        )
        lost += "behind" in race.dropped.values()
    assert lost <= 16


def scored(*scores: float, seconds: float = 1.0, rungs: tuple[int, ...] = (1, 3, 9)) -> Race:
    """A race whose candidates m0, m1, ... have these scores at the end of the first rung."""
    race = Race([*rungs], field(*(f"m{i}" for i in range(len(scores)))))
    race.legs = {f"m{i} 0": Leg(1, Score(score, 0.0), seconds) for i, score in enumerate(scores)}
    return race


def onward(
    race: Race, budget: float = math.inf, always: tuple[str, ...] = (), compare=lambda *_: None, at_once: int = 1
) -> list[str]:
    """Return who trains after the first rung."""
    trained: list[str] = []

    def train(candidate: Candidate, rounds: int) -> Leg:
        if rounds == race.rungs[1]:
            trained.append(candidate.method)
        return Leg(rounds, race.legs[candidate.name].score, 0.0)

    run_race(race, lambda _: budget, always, in_turn(train), compare, lambda d: d, lambda _: None, at_once)
    return trained


@pytest.mark.parametrize(("number", "kept"), [(3, 1), (4, 2), (9, 3), (10, 4)])
def test_a_third_of_the_candidates_trains_on_rounded_up(number, kept):
    scores = [i / number for i in range(number)]
    assert onward(scored(*scores)) == [f"m{i}" for i in range(number - kept, number)]


def test_the_third_that_trains_on_is_one_of_all_also_if_some_are_dropped_as_behind():
    def compare(first: Candidate, leader: Candidate, level: float) -> Difference:
        return Difference(-0.1, -0.2, -0.05 if first.method == "m0" else 0.1)

    race = scored(0.1, 0.2, 0.3, 0.4)
    assert onward(race, compare=compare) == ["m2", "m3"]
    assert race.dropped == {"m0 0": "behind", "m1 0": "time", "m2 0": "time"}


def test_what_trains_on_leaves_less_time_for_the_next():
    """The leader trains on; each of the others takes two seconds to the next rung, and half of nine are for that."""
    scores = [i / 9 for i in range(9)]
    assert onward(scored(*scores), 9.0) == ["m7", "m8"]
    assert onward(scored(*scores), 12.1) == ["m6", "m7", "m8"]


def test_legs_that_train_two_at_once_take_half_the_time():
    scores = [i / 9 for i in range(9)]
    assert onward(scored(*scores), 4.5, at_once=2) == ["m7", "m8"]
    assert onward(scored(*scores), 6.05, at_once=2) == ["m6", "m7", "m8"]


def test_a_leg_that_takes_longer_than_all_the_time_left_is_not_started_although_others_train_beside_it():
    for seconds, trained in ((2.0, ["m3"]), (1.2, ["m2", "m3"])):  # 16 of 10 seconds, or 9.6
        race = scored(0.1, 0.2, 0.3, 0.4, rungs=(1, 9), seconds=0.1)
        race.legs["m2 0"] = Leg(1, Score(0.3, 0.0), seconds)
        assert onward(race, 10.0, at_once=2) == trained


def test_what_takes_longest_starts_first_if_several_train_at_once():
    for at_once, order in ((1, ["m0", "m1", "m2"]), (2, ["m1", "m2", "m0"])):
        race = scored(0.1, 0.2, 0.3)
        race.legs |= {f"m{i} 0": Leg(1, Score(i / 10, 0.0), seconds) for i, seconds in enumerate((1.0, 5.0, 3.0))}
        assert onward(race, always=("m0", "m1", "m2"), at_once=at_once) == order


def test_the_first_rung_takes_its_share_of_the_time_for_all_rungs():
    skills = {SHARED: 0.5, ALONE: 0.4, **{f"m{i}": 0.5 for i in range(9)}}
    track = Track(skills)
    race = track.run(Race([1, 3, 9], field(*skills)), 13.5)
    assert sum(rounds == 1 for _, rounds in track.trained) == 5  # the fifth starts after 4 of 4.5 seconds
    assert [race.dropped[f"m{i} 0"] for i in range(3, 9)] == ["time"] * 6


@pytest.mark.parametrize(("budget", "starts"), [(1.9, False), (2.0, True)])
def test_a_bound_starts_only_within_the_time(budget, starts):
    race = Track({SHARED: 0.5, ALONE: 0.4, BOUND: 0.9}).run(Race([1, 3, 9], field(SHARED, ALONE, BOUND)), budget)
    assert ("pooled 0" in race.legs) == starts


def test_a_reference_that_trains_already_does_not_start_another_setting_after_the_time():
    track, second = Track({SHARED: 0.5}), Candidate(SHARED, (), 1)
    race = Race([9], [*field(SHARED), second], seconds=1.0)
    train = two_at_once(track)
    run_race(race, lambda _: 0.0, (SHARED,), train, track.compare, lambda d: d, lambda _: None, at_once=2)
    assert track.trained == [("fedavg 0", 9)]
    assert race.dropped == {"fedavg 1": "time"}


def test_seconds_of_the_legs_of_a_candidate_add_up():
    race = Race([1, 9], field("m"))
    race.add(Trained(race.alive[0], Leg(1, Score(0.5, 0.0), 2.0), 1.5))
    race.add(Trained(race.alive[0], Leg(9, Score(0.6, 0.0), 16.0), 12.0))
    assert race.legs["m 0"] == Leg(9, Score(0.6, 0.0), 18.0)
    assert race.seconds == 13.5


def test_time_before_the_race_and_in_it_is_not_left():
    assert Race([9], [], seconds=50.0, before=40.0).left(300.0) == 210.0


def test_looks_and_pairs_share_the_chance_of_a_false_drop():
    levels = []

    def compare(first: Candidate, second: Candidate, level: float) -> Difference:
        assert (first.method, second.method) in {
            ("m1", "m2"),
            ("m0", "m2"),
        }  # the leader is what others are compared with
        levels.append(level)
        return Difference(-0.1, -0.2, 0.1)  # not distinguishable

    onward(scored(0.1, 0.2, 0.3), compare=compare)
    assert levels[:2] == [pytest.approx(1 - ALPHA / (2 * 3))] * 2  # two looks at three pairs


@pytest.mark.parametrize(("mean", "higher_is_better", "reason"), [(-0.1, True, "behind"), (-0.1, False, "time")])
def test_behind_is_only_who_is_worse_than_the_leader(mean, higher_is_better, reason):
    race = scored(0.1, 0.2, 0.3)
    sign = 1 if higher_is_better else -1
    measured = Difference(mean, mean - 0.05, mean + 0.05)
    run_race(
        race,
        lambda _: math.inf,
        (),
        in_turn(lambda c, rounds: Leg(rounds, race.legs[c.name].score, 0.0)),
        lambda *_: measured,
        lambda difference: sign * difference,
        lambda _: None,
    )
    assert {*race.dropped.values()} == {reason}


def test_legs_of_runs_that_were_deleted_are_trained_again():
    race = scored(0.1, 0.2, 0.3, rungs=(1, 9))
    race.forget(lambda candidate: candidate.method != "m1")
    assert [*race.legs] == ["m0 0", "m2 0"]
    assert [candidate.method for candidate in race.waiting()] == ["m1"]

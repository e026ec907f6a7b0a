"""`siloflow diagnose` with a second look: a wider input is no other rule, and another rule stays one."""

import json

import numpy as np
import pytest

from flows.diagnose import diagnose, examined
from flows.diagnosis.against import examined_against
from models.shift.known.truth_pairs import SixFeatures
from silos.errors import UserError
from tasks.running.runner import PlainRunner

LOOK = "diagnose.second_look=true"
LAWS = {
    "plain": (2000, SixFeatures()),
    "swapped": (1000, SixFeatures(added=(1, 0), renamed=(0, 2, 1))),
    "wide": (1000, SixFeatures(width=1.8)),
}


class Stopping(PlainRunner):
    """Is stopped where silos are asked what models foresee."""

    def each(self, task, calls):
        if task.name == "tell_foreseen":
            raise KeyboardInterrupt
        return super().each(task, calls)


@pytest.fixture
def six(world):
    """Silos of six features, one of them a category: one with a wider input, one with moved inputs and another rule."""
    own = world()
    rows = {name: law(np.random.default_rng([4, at]), count) for at, (name, (count, law)) in enumerate(LAWS.items())}
    features = [{"name": f"x{at}", "low": -8, "high": 8} for at in range(6)]
    features[4] = {"name": "x4", "kind": "categorical", "categories": [1, 2, 3]}
    own.write(rows, features=features)
    return own


def types(found):
    return {(pair["first"], pair["second"]): pair["types"] for pair in found["pairs"]}


@pytest.mark.usefixtures("prefect")
def test_a_wider_input_is_feature_shift_alone_then_another_rule_stays_one_and_where_it_runs_does_not_matter(
    six, monkeypatch
):
    monkeypatch.chdir(six.folder)
    _, before = examined(six.open(), PlainRunner())
    assert types(before)[("plain", "wide")] == ["feature", "concept"]
    assert before["second_look"] is None
    _, after = examined(six.open(LOOK), PlainRunner())
    assert types(after)[("plain", "wide")] == ["feature"]
    assert {pair: "concept" in of for pair, of in types(after).items()} == {
        ("plain", "swapped"): True,
        ("plain", "wide"): False,
        ("swapped", "wide"): True,
    }
    assert next(iter(after["pairs"][1]["features"])) == "x1"
    look = after["second_look"]
    # three classes; five numbers, three categories and 1; 32 bins and the missing
    of_a_client = 4 * (2 * 3 * 9 + 3 * 6 * 33 * 3)
    assert look == {
        "silos": ["plain", "swapped", "wide"],
        "of_groups": False,
        "pairs": 3,
        "explained": 1,
        "silent": {},
        "bytes": {"up": 3 * of_a_client, "up_of_a_client": of_a_client},
    }
    assert any("in 1 of 3 pairs what seemed another rule follows from the inputs" in note for note in after["notes"])
    forget(six.folder / "private")
    there = diagnose(overrides=[LOOK, "runner.kind=processes", "runner.workers=2"])
    assert text({name: there[name] for name in after}) == text(after)


def test_stopped_between_its_two_questions_it_ends_as_if_nothing_had_happened_with_the_same_bytes(six):
    _, whole = examined(six.open(LOOK), PlainRunner())
    held = answers(six.folder / "private")
    forget(six.folder / "private")
    with pytest.raises(KeyboardInterrupt):
        examined(six.open(LOOK), Stopping())
    part = answers(six.folder / "private")
    assert part < held
    _, resumed = examined(six.open(LOOK), PlainRunner())
    assert answers(six.folder / "private") == held
    assert text(resumed) == text(whole)


def test_no_silo_is_asked_for_a_model_where_no_pair_seems_to_differ_in_inputs_and_rule(world):
    own, rng = world(), np.random.default_rng(0)
    own.write({name: (rng.normal(size=(200, 2)), np.arange(200) % 2) for name in ("one", "other")})
    _, found = examined(own.open(LOOK), PlainRunner())
    assert found["second_look"]["silos"] == []
    assert found["second_look"]["bytes"]["up"] == 0
    assert any("no silo was asked" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("also", "match"),
    [
        ("diagnose.noise={epsilon: 4}", "second_look asks for models, which are told without noise"),
        ("diagnose.verdict=moments", "second_look is at what the verdict guarded says, and verdict is moments"),
        ("diagnose.verdict=paper", "second_look is at what the verdict guarded says, and verdict is paper"),
    ],
)
def test_with_noise_or_another_verdict_there_is_no_second_look(also, match, six):
    with pytest.raises(UserError, match=match):
        six.open(LOOK, also)


def test_against_an_earlier_version_there_is_no_second_look(six):
    with pytest.raises(
        UserError, match="second_look is at pairs of silos, and --against compares each silo with itself"
    ):
        examined_against(six.open(LOOK), PlainRunner(), "HEAD")


def text(found):
    return json.dumps(found, sort_keys=True)


def answers(private):
    """The names of what was told, which are the hashes of its bytes."""
    return {path.name for path in private.rglob("*.safetensors")}


def forget(private):
    """All that was told; the secrets stay, from which halves and rounding follow."""
    for book in [path for path in private.rglob("*") if path.is_file() and path.name not in ("secret", "lock")]:
        book.unlink()

"""`siloflow diagnose` with a second look: a wider input is no other rule, and another rule stays one."""

import json

import numpy as np
import pytest

from flows.diagnose import compare_with_version, diagnose, run_diagnosis
from models.diagnosis.diagnose_pairs import MOST_PRODUCTS
from publications.synthetic_pairs.fixed_pairs import SixFeatures
from silos.errors import UserError
from silos.privacy.ledger import Ledger
from tasks.diagnosis import compare_silos
from tasks.execution.task_runner import PlainRunner

LOOK = "diagnose.second_look=true"
LAWS = {
    "plain": (2000, SixFeatures()),
    "swapped": (1000, SixFeatures(added=(1, 0), renamed=(0, 2, 1))),
    "wide": (1000, SixFeatures(width=1.8)),
}
FEATURES = [
    {"name": f"x{at}", "low": -8, "high": 8}
    if at != 4
    else {"name": "x4", "kind": "categorical", "categories": [1, 2, 3]}
    for at in range(6)
]


class Stopping(PlainRunner):
    """Is stopped where silos are asked what models foresee."""

    def map_cohorts(self, task, calls):
        if task.name == "report_predictions":
            raise KeyboardInterrupt
        return super().map_cohorts(task, calls)


@pytest.fixture
def six(world):
    """Silos of six features, one of them a category: one with a wider input, one with moved inputs and another rule."""
    own = world()
    own.write(six_rows(), features=FEATURES)
    return own


def six_rows():
    return {name: law(np.random.default_rng([4, at]), count) for at, (name, (count, law)) in enumerate(LAWS.items())}


def bytes_of_models(look, models_asked_about, silos):
    """Of two models of each silo: three classes by five numbers, three categories, 1, and products of two features.

    Predictions are of each cell, of 32 bins and the missing, and class.
    """
    of_models = look["bytes"]["up"] - 4 * models_asked_about * 6 * 33 * 3
    columns, rest = divmod(of_models, 4 * silos * 2 * 3)
    assert rest == 0
    assert 9 < columns <= 9 + 3 * MOST_PRODUCTS
    return of_models


def types(found):
    return {(pair["first"], pair["second"]): pair["types"] for pair in found["pairs"]}


@pytest.mark.slow
def test_a_wider_input_is_feature_shift_alone_then_and_another_rule_stays_one(six):
    _, before = run_diagnosis(six.open(), PlainRunner())
    pair = next(pair for pair in before["pairs"] if (pair["first"], pair["second"]) == ("plain", "wide"))
    assert (pair["types"], pair["resolved_by_pairs"]) == (["feature"], True)
    assert before["second_look"] is None
    assert any("second_look=true" in step for step in before["next"])
    _, after = run_diagnosis(six.open(LOOK), PlainRunner())
    assert not any("second_look=true" in step for step in after["next"])
    assert types(after)[("plain", "wide")] == ["feature"]
    assert {pair: "concept" in of for pair, of in types(after).items()} == {
        ("plain", "swapped"): True,
        ("plain", "wide"): False,
        ("swapped", "wide"): True,
    }
    assert next(iter(after["pairs"][1]["features"])) == "x1"
    look = after["second_look"]
    of_a_client = bytes_of_models(look, 9, 3) // 3 + 4 * 3 * 6 * 33 * 3
    assert look == {
        "silos": ["plain", "swapped", "wide"],
        "reported": {key: ["plain", "swapped", "wide"] for key in ("models", "predictions")},
        "of_groups": False,
        "pairs": 3,
        "explained": 1,
        "refused": {},
        "bytes": {"up": 3 * of_a_client, "up_of_a_client": of_a_client},
    }
    assert any(
        "in 1 of 3 pairs of silos the inputs explain what seemed to be another rule" in note for note in after["notes"]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_where_a_second_look_runs_does_not_matter(six, monkeypatch):
    monkeypatch.chdir(six.folder)
    _, after = run_diagnosis(six.open(LOOK), PlainRunner())
    forget(six.folder / "private")
    there = diagnose(overrides=[LOOK, "runner.kind=processes", "runner.workers=2"])
    assert text({name: there[name] for name in after}) == text(after)


@pytest.mark.slow
def test_what_is_drawn_of_a_pair_that_is_explained_is_what_its_inputs_differ_in(six):
    six.allow_cells_of_one_row()  # with merged cells, parts of another feature are a third of this one's
    (before, _), (after, _) = (run_diagnosis(six.open(*also), PlainRunner()) for also in ((), (LOOK,)))
    drawn = [
        {close.feature for close in found.pair_details if (close.first, close.second) == (0, 2)}
        for found in (before, after)
    ]
    assert drawn == [{1}, {1}]


@pytest.mark.slow
def test_where_the_rule_is_explained_and_label_shares_are_not_inputs_carry_the_shift_too(world):
    """Three of four rows of a class of the wider one are gone as well: more than its inputs account for."""
    own = world()
    rows = {name: rows for name, rows in six_rows().items() if name != "swapped"}
    x, y = rows["wide"]
    kept = (y != 0) | (np.arange(len(y)) % 4 == 0)
    own.write({**rows, "wide": (x[kept], y[kept])}, features=FEATURES)
    own.allow_cells_of_one_row()  # few rows of the class that is left are at the ends of a wider input
    (before, _), (after, _) = (run_diagnosis(own.open(*also), PlainRunner()) for also in ((), (LOOK,)))
    assert before.pairs.verdicts.types.tolist() == [[True, True, False]]  # pairs of features resolve it as well
    assert after.pairs.verdicts.types.tolist() == [[True, True, False]]
    np.testing.assert_array_equal(after.pairs.parts, before.pairs.inputs)


@pytest.mark.slow
def test_only_silos_of_pairs_in_doubt_are_asked_and_about_their_partners_models_and_their_own(world):
    """Of two alike, one that differs from both in a wider input, and one of too few rows to be compared."""
    own = world()
    laws = {"plain": LAWS["plain"], "same": LAWS["plain"], "small": (15, SixFeatures()), "wide": LAWS["wide"]}
    rows = {name: law(np.random.default_rng([4, at]), count) for at, (name, (count, law)) in enumerate(laws.items())}
    own.write(rows, features=FEATURES)
    _, found = run_diagnosis(own.open(LOOK), PlainRunner())
    look = found["second_look"]
    assert (look["pairs"], look["explained"]) == (2, 2)
    assert look["silos"] == look["reported"]["models"] == look["reported"]["predictions"] == ["plain", "same", "wide"]
    models_asked_about = 2 + 2 + 3
    assert bytes_of_models(look, models_asked_about, 3) > 0
    private = str(own.folder / "private" / "own")
    assert {name: len(Ledger(private, name).entries()) for name in laws} == {
        "plain": 4,
        "same": 4,
        "small": 2,
        "wide": 4,
    }


@pytest.mark.slow
def test_a_pair_of_which_one_silo_is_silent_stays_as_it_was_and_who_told_and_why_not_is_said(six):
    """Fourteen rows of a class left the wide one, some seven of either half; the others forgot what they told."""
    run_diagnosis(six.open(LOOK), PlainRunner())
    for name in ("plain", "swapped"):
        forget(next((six.folder / "private" / "own" / ".ledgers").glob(f"{name}-*")))
        next((six.folder / "private" / "own" / ".opened").glob(f"{name}-*")).unlink()
    rows = six_rows()
    x, y = rows["wide"]
    kept = np.setdiff1d(np.arange(len(y)), np.flatnonzero(y == 0)[:14])
    six.write({**rows, "wide": (x[kept], y[kept])}, features=FEATURES)
    _, found = run_diagnosis(six.open(LOOK), PlainRunner())
    assert types(found)[("plain", "wide")] == ["feature", "concept"]
    look = found["second_look"]
    assert look["silos"] == ["plain", "swapped", "wide"]
    assert look["reported"] == {key: ["plain", "swapped"] for key in ("models", "predictions")}
    of_a_client = bytes_of_models(look, 4, 2) // 2 + 4 * 2 * 6 * 33 * 3
    assert look["bytes"] == {"up": 2 * of_a_client, "up_of_a_client": of_a_client}
    at = next(at for at, note in enumerate(found["notes"]) if note.startswith("Second look: in none of 3 pairs"))
    assert found["notes"][at + 1 :] == [
        "plain and swapped sent models of their labels, and predicted counts of their rows.",
        f"All silos together sent {2 * of_a_client:,} bytes for it.",
        f"wide took no part in the second look: {look['refused']['wide']}",
    ]


@pytest.mark.slow
def test_where_groups_are_compared_no_silo_is_asked_for_a_model(six, monkeypatch):
    monkeypatch.setattr(compare_silos, "MOST_PAIRS", 1)
    compared, found = run_diagnosis(six.open(LOOK), PlainRunner())
    feature, _, concept = compared.pairs.verdicts.types.T
    assert (feature & concept).any()
    assert found["second_look"]["of_groups"]
    assert (found["second_look"]["silos"], found["second_look"]["pairs"]) == ([], 0)
    assert any("with so many silos groups are compared" in note for note in found["notes"])


@pytest.mark.slow
def test_stopped_between_its_two_questions_it_ends_as_if_nothing_had_happened_with_the_same_bytes(six):
    _, whole = run_diagnosis(six.open(LOOK), PlainRunner())
    held = answers(six.folder / "private")
    forget(six.folder / "private")
    with pytest.raises(KeyboardInterrupt):
        run_diagnosis(six.open(LOOK), Stopping())
    part = answers(six.folder / "private")
    assert part < held
    _, resumed = run_diagnosis(six.open(LOOK), PlainRunner())
    assert answers(six.folder / "private") == held
    assert text(resumed) == text(whole)


def test_no_silo_is_asked_for_a_model_where_no_pair_seems_to_differ_in_inputs_and_rule(world):
    own, rng = world(), np.random.default_rng(0)
    own.write({name: (rng.normal(size=(200, 2)), np.arange(200) % 2) for name in ("one", "other")})
    _, found = run_diagnosis(own.open(LOOK), PlainRunner())
    assert found["second_look"]["silos"] == []
    assert found["second_look"]["bytes"]["up"] == 0
    assert any("second look was not needed" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("also", "match"),
    [
        (
            "diagnose.noise={epsilon: 4}",
            "got second_look with noise, expected one of them, since models are sent without noise",
        ),
        ("diagnose.verdict=moments", "got second_look with the verdict moments, expected the verdict guarded"),
        ("diagnose.verdict=paper", "got second_look with the verdict paper, expected the verdict guarded"),
    ],
)
def test_with_noise_or_another_verdict_there_is_no_second_look(also, match, six):
    with pytest.raises(UserError, match=match):
        six.open(LOOK, also)


def test_against_an_earlier_version_there_is_no_second_look(six):
    with pytest.raises(UserError, match="second_look: got true, expected false with --against"):
        compare_with_version(six.open(LOOK), PlainRunner(), "HEAD")


def text(found):
    return json.dumps(found, sort_keys=True)


def answers(private):
    """The names of what was told, which are the hashes of its bytes."""
    return {path.name for path in private.rglob("*.safetensors")}


KEPT = ("secret", "lock", "owner.yaml")


def forget(private):
    """All that was told; the secrets stay, from which halves and rounding follow."""
    for book in [path for path in private.rglob("*") if path.is_file() and path.name not in KEPT]:
        book.unlink()


def hospital(seed, older, together=1.5, rows=3000):
    """Age decides more in an emergency."""
    rng = np.random.default_rng([seed, 57])
    age, urgent = np.round(62 + 14 * rng.normal(size=rows) + older), rng.random(rows) < 0.4
    weight = rng.normal(70, 10, rows)
    of_age = (0.3 + together * np.where(urgent, 1.0, -0.2)) * (age - 62) / 14
    y = rng.random(rows) < 1 / (1 + np.exp(1 - of_age - urgent))
    return np.stack([age, weight, urgent], 1), y.astype(np.int64)


HOSPITAL = [
    {"name": "age", "low": 0, "high": 130},
    {"name": "weight", "low": 20, "high": 120},
    {"name": "emergency", "kind": "categorical", "categories": [0, 1]},
]


@pytest.mark.slow
@pytest.mark.parametrize("look", [(), (LOOK,)])
def test_older_patients_are_named_by_age_and_a_common_rule_in_which_features_act_together_is_no_other_rule(world, look):
    own = world()
    own.write({"bergen": hospital(0, 0.0), "oslo": hospital(1, 9.0)}, features=HOSPITAL)
    _, report = run_diagnosis(own.open(*look), PlainRunner())
    assert report["pairs"][0]["types"] == ["feature"]
    assert list(report["pairs"][0]["input_features"]) == ["age"]
    text = " ".join([*report["sentences"], *report["next"]])
    assert "age is lower by 9" in text or "age is higher by 9" in text or "age is lower by 8" in text
    assert "emergency" not in text
    assert "rule" not in text


@pytest.mark.slow
def test_where_both_differ_inputs_are_named_by_what_moved_and_the_rule_by_what_acts_otherwise(world):
    own = world()
    own.write({"bergen": hospital(0, 0.0), "oslo": hospital(1, 9.0, together=-1.5)}, features=HOSPITAL)
    _, report = run_diagnosis(own.open(), PlainRunner())
    pair = report["pairs"][0]
    assert pair["types"] == ["feature", "concept"]
    assert list(pair["input_features"]) == ["age"] == [line["feature"] for line in report["ranking_of_inputs"]][:1]
    assert any("why age differs" in step for step in report["next"])

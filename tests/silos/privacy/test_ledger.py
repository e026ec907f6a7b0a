"""A client answers a question once, within its budget, and not where the difference to what it reported is a few rows."""

import math
import os
import pickle
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silos.client_store import ClientStore
from silos.errors import RefusalError, UserError
from silos.param_types import is_plain
from silos.privacy.differencing import OTHER
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.owner_file import Policy
from silos.privacy.report_rules import Kind

COUNTS, SUMS = np.arange(12).reshape(3, 4), np.linspace(0.0, 1.0, 5)
rows_at = np.random.default_rng(0).normal(size=(200, 3))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path), "oslo")


def plain(draw: Draw) -> dict[str, np.ndarray]:
    return {"counts": COUNTS, "sums": SUMS, "none": np.zeros((0, 2), np.float32)}


def noisy(draw: Draw) -> dict[str, np.ndarray]:
    return {"counts": COUNTS + 3 * draw("counts").normal(size=COUNTS.shape), "sums": SUMS + draw("sums").normal(size=5)}


def never(draw: Draw) -> dict[str, np.ndarray]:
    pytest.fail("the question was computed again")


@pytest.fixture
def reported(of_rows):
    """Rows of one class by their numbers."""
    return lambda *chosen: of_rows({"oak": rows_at[list(chosen)]})


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in ((one[n], two[n]) for n in one)
    )


def files(ledger: Ledger) -> dict[str, Path]:
    return {path.name: path for path in Path(ledger.folder).rglob("*") if path.is_file()}


def test_an_answer_without_noise_is_the_truth_and_is_remembered(ledger, reported):
    answer = ledger.answer("v1", "means", plain, values=reported(*range(30)))
    assert same(answer, plain(np.random.default_rng))
    (entry,) = ledger.entries()
    assert (entry.version, entry.question, entry.rho, entry.bytes) == ("v1", "means", 0.0, 12 * 8 + 5 * 8)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.when)


def test_the_same_question_gets_the_same_bytes_and_costs_nothing(ledger, tmp_path, reported):
    first = ledger.answer("v1", "counts", noisy, rho=0.3, budget=0.5)
    for again in (ledger, Ledger(str(tmp_path), "oslo"), pickle.loads(pickle.dumps(ledger))):
        assert same(again.answer("v1", "counts", never, rho=0.3, budget=0.5), first)
    assert len(ledger.entries()) == 1
    quiet = ledger.answer("v1", "means", plain, values=reported(*range(30)))
    assert same(ledger.answer("v1", "means", never), quiet)


def test_another_question_is_refused_once_the_budget_is_spent_in_whatever_version(ledger, reported):
    ledger.answer("v1", "counts", noisy, rho=0.3, budget=0.5)
    with pytest.raises(UserError) as refused:
        ledger.answer("v2", "counts", never, rho=0.3, budget=0.5)
    assert str(refused.value) == (
        "client oslo: got a query that costs rho 0.3, expected one within its privacy budget of 0.5, of which 0.3 is spent. "
        "Repeat an earlier query, lower rho to 0.2 or less, or let the client's owner raise budget in its owner.yaml."
    )
    ledger.answer("v2", "counts", noisy, rho=0.2, budget=0.5)
    ledger.answer("v3", "means", plain, budget=0.5, values=reported(*range(30)))
    assert math.fsum(entry.rho for entry in ledger.entries()) == 0.5


def test_a_budget_has_room_for_what_adds_up_to_it_but_for_rounding(ledger):
    assert math.fsum([0.1] * 3) > 0.3
    for question in "abc":
        ledger.answer("v1", question, noisy, rho=0.1, budget=0.3)
    with pytest.raises(UserError, match=r"costs rho 1e-06, .* of which 0\.3 is spent"):
        ledger.answer("v1", "d", noisy, rho=1e-6, budget=0.3)


ASKED = st.lists(
    st.tuples(st.sampled_from(["v1", "v2"]), st.sampled_from("ab"), st.sampled_from([0.05, 0.1, 0.3])), max_size=8
)


@given(ASKED, st.sampled_from([0.1, 0.3, 0.45]))
@settings(max_examples=20)
def test_no_order_of_questions_overruns_the_budget_nor_refuses_what_it_has_room_for(asked, budget):
    with tempfile.TemporaryDirectory() as folder:
        ledger, answered, hundredths = Ledger(folder, "oslo"), {}, 0
        for question in asked:
            version, name, cost = question
            fits = question in answered or hundredths + round(100 * cost) <= round(100 * budget)
            try:
                answer = ledger.answer(version, name, noisy, None, cost, budget)
            except UserError:
                assert not fits
                continue
            assert fits
            assert same(answered.setdefault(question, answer), answer)
            hundredths = sum(round(100 * cost) for _, _, cost in answered)
        assert Counter((e.version, e.question, e.rho) for e in ledger.entries()) == Counter(list(answered))
        assert math.fsum(e.rho for e in ledger.entries()) <= budget * (1 + 1e-9)


def test_noise_is_no_other_clients_nor_another_questions_versions_or_costs(tmp_path):
    """Two answers with one noise at two sizes would give the truth."""

    def zeros(draw: Draw) -> dict[str, np.ndarray]:
        return {part: draw(part).normal(size=20_000) for part in ("counts", "sums")}

    asked = [("oslo", "v1", "q", 0.1), ("rome", "v1", "q", 0.1), ("oslo", "v2", "q", 0.1), ("oslo", "v1", "p", 0.1)]
    asked.append(("oslo", "v1", "q", 0.2))
    answers = [Ledger(str(tmp_path), client).answer(*which, zeros, rho=cost) for client, *which, cost in asked]
    draws = np.concatenate([[answer["counts"], answer["sums"]] for answer in answers])
    assert np.abs(draws.std(1) - 1).max() < 0.03
    assert np.abs(np.corrcoef(draws) - np.eye(len(draws))).max() < 4.5 / math.sqrt(20_000)


@pytest.mark.parametrize("clients", [["Oslo", "oslo"], ["a/b", "a.b", "a b", "../a"], ["é" * 300, "è" * 300]])
def test_clients_of_whatever_name_have_a_ledger_of_their_own_inside_the_folder(clients, tmp_path):
    for client in clients:
        Ledger(str(tmp_path / "private"), client).answer("v1", "q", noisy, rho=0.1)
    assert [len(Ledger(str(tmp_path / "private"), client).entries()) for client in clients] == [1] * len(clients)
    assert [path.name for path in tmp_path.iterdir()] == ["private"]


@pytest.mark.parametrize("change", ["added", "removed", "replaced"])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 10, 11])
def test_a_version_that_differs_by_one_to_nine_rows_of_a_class_is_refused_without_noise(
    change, count, ledger, reported
):
    ledger.answer("1111aaaa2222bbbb.dir", "means", plain, values=reported(*range(40)))
    chosen = {"added": range(40 + count), "removed": range(40 - count), "replaced": range(count, 40 + count)}[change]
    rows = reported(*chosen)
    if 0 < count < 10:
        with pytest.raises(UserError) as refused:
            ledger.answer("3333cccc4444dddd.dir", "means", never, values=rows)
        assert str(refused.value) == (
            "client oslo: its rows and those of an earlier report without noise differ by fewer than 10 different rows of a "
            "class, removed or added, or by fewer values of a column. Subtracting the two reports would reveal these. "
            "With `owners_view: true` in its owner's file, `siloflow data diff VERSION` shows the class. "
            "Wait until the class has lost none or at least ten "
            "rows, and gained none or at least ten, or report with noise: `siloflow diagnose --set "
            "'diagnose.noise={epsilon: 4}'`."
        )
        ledger.answer("3333cccc4444dddd.dir", "means", noisy, rho=0.1)
    else:
        ledger.answer("3333cccc4444dddd.dir", "means", plain, values=rows)
    assert len(ledger.entries()) == 2


def test_of_a_kind_that_is_answered_once_a_version_answers_one_question_and_another_kind_is_in_nobodys_way(
    ledger, reported
):
    rows, once = reported(*range(40)), Kind("models", once="ask nothing")
    first = ledger.answer("v1", "by weight", plain, values=rows, kind=once)
    for kind in (Kind(), Kind("means"), Kind("medians", once="ask no more")):
        ledger.answer("v1", "by height", plain, values=rows, kind=kind)
    with pytest.raises(UserError) as refused:
        ledger.answer("v1", "by height", never, values=rows, kind=once)
    assert str(refused.value) == (
        "client oslo: got a second query of the kind `models` on its present rows, expected one, since each further "
        "answer reveals more of single rows. Ask nothing."
    )
    assert len(ledger.entries()) == 4
    assert same(ledger.answer("v1", "by weight", never, values=rows, kind=once), first)
    ledger.answer("v2", "by height", plain, values=reported(*range(60)), kind=once)


def test_where_rows_differ_by_few_a_kind_s_own_group_and_way_out_are_named(ledger, reported):
    kind = Kind("models", "half of a class", "ask about fewer models")
    ledger.answer("v1", "by weight", plain, values=reported(*range(40)), kind=kind)
    with pytest.raises(
        UserError, match=r"fewer than 10 different rows of half of a class, .*\. Ask about fewer models\.$"
    ):
        ledger.answer("v2", "by weight", never, values=reported(*range(41)), kind=kind)


def test_every_version_reported_before_counts_not_the_last_alone(ledger, reported):
    ledger.answer("v1", "means", plain, values=reported(*range(40)))
    ledger.answer("v2", "means", plain, values=reported(*range(60)))
    with pytest.raises(UserError, match=r"its rows and those of an earlier report without noise differ"):
        ledger.answer("v3", "means", never, values=reported(*range(41)))


def test_what_was_reported_under_noise_or_refused_is_in_nobodys_way(ledger, reported):
    ledger.answer("v1", "means", noisy, rho=0.1)
    ledger.answer("v2", "means", plain, values=reported(*range(40)))
    with pytest.raises(UserError):
        ledger.answer("v3", "means", never, values=reported(*range(45)))
    ledger.answer("v4", "means", plain, values=reported(*range(50)))


def test_a_class_that_sinks_under_the_minimum_is_no_way_around_it(ledger, of_rows):
    few, rest, pooled = rows_at[100:112], rows_at[:40], rows_at[150:165]
    ledger.answer("v1", "means", plain, of_rows({"oak": rest, "elm": few, OTHER: pooled}))
    with pytest.raises(UserError, match="fewer than 10 different rows"):
        ledger.answer("v2", "means", never, of_rows({"oak": rest, OTHER: np.concatenate([few[:9], pooled])}))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"compute": plain}, "must name the rows"),
        ({"compute": plain, "rho": 0.1}, "noise of counts, none, sums: got none, expected a draw"),
        ({"compute": lambda draw: noisy(draw) | {"n": SUMS}, "rho": 0.1}, "noise of n: got none"),
        (
            {"compute": lambda draw: {"a": draw("a").normal(size=2) - draw("a").normal(size=2)}, "rho": 0.1},
            "noise of a: got a second draw",
        ),
        ({"compute": noisy, "rho": -0.1}, "rho: got -0.1"),
        ({"compute": noisy, "rho": math.inf}, "rho: got inf"),
    ],
)
def test_what_would_be_no_protection_is_refused_and_not_remembered(asked, sentence, ledger):
    with pytest.raises(ValueError, match=sentence):
        ledger.answer("v1", "q", **asked)
    assert ledger.entries() == []


FAULTS = {
    "flipped": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}
PARTS = ["secret", "ledger.log", "answer", "rows"]


@pytest.mark.parametrize(("part", "fault"), [(p, f) for p in PARTS for f in FAULTS if (p, f) != ("ledger.log", "gone")])
def test_nothing_is_reported_over_a_damaged_file_which_is_named(part, fault, ledger, reported):
    rows = reported(*range(40))
    ledger.answer("v1", "means", plain, values=rows)
    (entry,) = ledger.entries()
    name = {"answer": f"{entry.answer}.safetensors", "rows": f"{entry.rows}.safetensors"}.get(part, part)
    path = files(ledger)[name]
    FAULTS[fault](path)
    # of a secret that is whole nobody knows that it is another, but for the seal
    named = "ledger.log" if (part, fault) == ("secret", "flipped") else name
    version = "v1" if part == "answer" else "v2"
    with pytest.raises(
        UserError, match=rf"/{re.escape(named)}, .* client.* Restore .* copy[., ].*[nN]othing is reported until"
    ):
        ledger.answer(version, "means", never, values=rows)


@pytest.mark.parametrize("gone", ["ledger.log", "folder"])
def test_a_ledger_that_was_deleted_is_no_new_one_until_its_owner_says_so(gone, ledger, reported):
    ledger.answer("v1", "counts", noisy, rho=0.3, budget=0.3)
    path = files(ledger)["ledger.log"]
    path.unlink() if gone == "ledger.log" else shutil.rmtree(path.parent)
    for ask in (
        lambda: ledger.answer("v1", "counts", never, rho=0.3, budget=0.3),
        lambda: ledger.answer("v2", "means", never, values=reported(*range(30))),
        ledger.entries,
    ):
        with pytest.raises(
            RefusalError,
            match=r"/ledger\.log, the record of what client oslo reported, is missing\. .* data ledger --new",
        ):
            ask()
    ledger.forget()
    assert ledger.entries() == []
    ledger.answer("v1", "counts", noisy, rho=0.3, budget=0.3)
    ledger.forget()  # of a ledger that is there nothing is forgotten
    assert len(ledger.entries()) == 1


def test_a_client_that_was_killed_before_its_first_ledger_starts_one(ledger):
    ledger.unit_hashes(np.arange(3))  # which makes the secret
    assert "ledger.log" not in files(ledger)
    ledger.answer("v1", "counts", noisy, rho=0.3)


def test_what_stood_in_for_an_answer_is_no_answer(ledger, reported):
    """The same question by the other method: nine rows more are not reported as the rows before them."""
    first = ledger.answer_or_stand_in("v1", "means", plain, reported(*range(40)), Kind("means"))
    later = ledger.answer_or_stand_in("v2", "means", plain, reported(*range(49)), Kind("means"))
    assert same(first.answer, later.answer)
    assert later.earlier == "v1"
    with pytest.raises(RefusalError, match="fewer than 10 different rows"):
        ledger.answer("v2", "means", never, values=reported(*range(49)), kind=Kind("means"))


def test_only_an_answer_is_looked_up_as_recorded_and_not_what_stood_in_for_one(ledger, reported):
    assert ledger.recorded("v1", "means") is None
    first = ledger.answer_or_stand_in("v1", "means", plain, reported(*range(40)), Kind())
    ledger.answer_or_stand_in("v2", "means", plain, reported(*range(49)), Kind())
    ledger.answer("v1", "counts", noisy, rho=0.3)
    assert same(ledger.recorded("v1", "means").answer, first.answer)
    assert ledger.recorded("v2", "means") is None
    assert same(ledger.recorded("v1", "counts", 0.3).answer, ledger.answer("v1", "counts", never, rho=0.3))
    assert ledger.recorded("v1", "counts", 0.1) is None


def test_a_client_whose_owner_wants_noise_reports_nothing_without_it_also_not_again(tmp_path, reported):
    ledger, strict = (
        Ledger(str(tmp_path), "oslo", Policy(without_noise=allowed, least_rows=least))
        for allowed, least in ((True, 10), (False, 10))
    )
    rows, means = reported(*range(40)), Kind("means")
    ledger.answer("v1", "means", plain, values=rows)
    ledger.answer_or_stand_in("v1", "means", plain, rows, means)
    for ask in (
        lambda: strict.answer("v1", "means", never, values=rows),
        lambda: strict.answer_or_stand_in("v1", "means", never, rows, means),
        lambda: strict.recorded("v1", "means", kind=means, or_earlier=True),
    ):
        with pytest.raises(RefusalError, match=r"got a query without noise, .* without_noise"):
            ask()
    strict.answer("v1", "counts", noisy, rho=0.1)


def test_where_the_owner_wants_more_rows_a_difference_covers_as_many(tmp_path, reported):
    ledger = Ledger(str(tmp_path), "oslo", Policy(least_rows=20))
    ledger.answer("v1", "means", plain, values=reported(*range(40)))
    with pytest.raises(RefusalError, match="fewer than 20 different rows"):
        ledger.answer("v2", "means", never, values=reported(*range(59)))
    ledger.answer("v3", "means", plain, values=reported(*range(60)))
    with pytest.raises(ValueError, match="fewer than 20 different rows"):
        ledger.answer("v4", "means", never, values=reported(*range(100, 119)))


def test_what_a_ledger_names_is_on_disk_under_its_name_before_it_and_the_ledger_before_it_is_told(
    ledger, monkeypatch, reported
):
    """Else a power cut leaves a ledger that names a missing file, or an answer that was sent and never reported."""
    did, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (did.append(Path(f"/proc/self/fd/{file}").resolve()), sync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (did.append(Path(new).name), rename(old, new)))
    ledger.answer("v1", "means", plain, values=reported(*range(40)))
    place = files(ledger)["ledger.log"].parent
    names = [at for at, what in enumerate(did) if isinstance(what, str)]
    assert [did[at - 1].suffix for at in names] == [".tmp"] * 3, "each is synced, then named: secret, answer and rows"
    assert did[names[-1] + 1 :] == [place, files(ledger)["ledger.log"], place, ledger._mark, ledger._mark.parent]


def test_no_clean_up_after_runs_comes_to_the_ledger(ledger, tmp_path):
    """Data sets, runs and sections have plain names, and what is swept is in a section."""
    ledger.answer("v1", "counts", noisy, rho=0.3)
    before = {name: path.read_bytes() for name, path in files(ledger).items()}
    inside = {part for path in files(ledger).values() for part in path.relative_to(tmp_path).parts[:1]}
    assert not any(is_plain(name) for name in inside)
    store = ClientStore(str(tmp_path / "digits" / "run"))
    store.save("weights", ["oslo"], {"w": np.zeros((1, 2))})
    store.keep("weights", [])
    left = {name: path.read_bytes() for name, path in files(ledger).items()}
    assert left == before | {"weights": left["weights"]}, "the kind of the section stays, and the ledger"


def test_the_folder_is_for_the_owners_eyes(ledger):
    ledger.answer("v1", "counts", noisy, rho=0.3)
    assert files(ledger)["ledger.log"].parent.stat().st_mode & 0o777 == 0o700


def test_no_row_and_no_secret_is_in_what_is_reported_said_or_kept(ledger, reported):
    rows, said = reported(*range(40)), []
    answers = [ledger.answer("v1", "means", plain, values=rows), ledger.answer("v1", "counts", noisy, None, 0.1, 0.1)]
    for version, cost in (("v2", 0.0), ("v2", 0.1)):
        with pytest.raises(UserError) as refused:
            ledger.answer(version, "means", never, reported(*range(41)), cost, 0.1)
        said.append(str(refused.value))
    secret = files(ledger)["secret"].read_bytes()
    kept = [path.read_bytes() for name, path in files(ledger).items() if name != "secret"]
    heard = [array.tobytes() for answer in answers for array in answer.values()]
    heard += [text.encode() for text in (*said, repr(ledger), repr(ledger.entries()))] + [pickle.dumps(ledger)]
    hashes = rows.tokens
    assert any(hashes[0].tobytes() in content for content in kept), "the search finds what is there"
    numbers = [value.tobytes() for kind in (np.float64, np.float32) for value in rows_at[:41].astype(kind).ravel()]
    texts = [repr(float(value))[:9].encode() for value in rows_at[:41].ravel()]
    for content in heard + kept:
        assert not any(
            part in content for part in [*numbers, *texts, secret, secret.hex().encode(), repr(secret)[2:-1].encode()]
        )
    for content in heard:
        assert not any(mark.tobytes() in content or str(mark).encode() in content for mark in hashes)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]

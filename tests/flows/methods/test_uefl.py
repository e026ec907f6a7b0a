"""UEFL reduces to what it must, extends whom it must, and resumes inside any stage."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from flows.methods.common.codebook_stages import SECTION
from flows.methods.fedavg import FedAvg
from flows.methods.references.uefl_authors import UEFLAuthors
from flows.methods.uefl import UEFL
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, QuantizedNetwork, code_usage
from models.training.optimizers import SGD, Adam
from silos.client_store import ClientStore
from silos.cohort import Stack
from silos.errors import DivergedError, UserError
from tasks.evaluate import evaluate
from tasks.execution.load_client_data import load_rows, load_weights
from tasks.tracking.checkpoint import load_state, save_state
from tasks.tracking.result_tables import by_client

pytestmark = pytest.mark.slow

CLIENTS = {"oslo": 24, "lyon": 17, "rome": 12, "bonn": 9}
AUTHORS = {"words": 4, "first_rounds": 2, "more_rounds": 1, "tolerance": -1.0, "stages": 3}
EVERYBODY = {"arm": "paper", **AUTHORS}


@pytest.fixture
def setup(make_problem):
    return make_problem(CLIENTS, network=MLP(5, (6,), 3, dropout=0.2), optimiser=Adam(0.01), silos={"validation": 5})


@pytest.fixture
def ensemble(setup):
    return replace(setup, network=DeepEnsemble(setup.network, 2))


def page_of(options, **more):
    """UEFL's page, or its authors'."""
    return UEFLAuthors(**{**AUTHORS, **more}) if options == "authors" else UEFL(**{**EVERYBODY, **more, **options})


def own_words(played, client):
    return torch.from_numpy(played.private.load(SECTION, played.state.private[SECTION], client)[OWN])


def test_without_a_limit_it_is_fedavg_on_quantised_features_bit_for_bit(setup, play):
    """VQ-FedAvg."""
    ours = play(
        UEFL(arm="paper", words=4, segments=2, first_rounds=1, tolerance=None, until="budget"), setup, [1, 2, 3]
    )
    quantised = replace(setup, network=QuantizedNetwork(setup.network, 4, segments=2))
    theirs = play(FedAvg(), quantised, [1, 2, 3])
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w), name


def test_before_its_words_it_is_fedavg_bit_for_bit(setup, play):
    ours = play(UEFL(arm="paper", start="centres", warm_up=3), setup, [1, 2, 3])
    theirs = play(FedAvg(), setup, [1, 2, 3])
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w), name


def test_words_that_start_where_the_features_are_all_have_tokens(setup, play):
    played = play(UEFL(arm="paper", start="centres", warm_up=1, words=3), setup, [1, 2])
    book = played.state.tensors["weights"][SHARED]
    assert book.shape == (3, 6)
    assert (book >= -1).all()
    assert book.mean() > 0, "features are behind a ReLU"


def test_an_infinite_tolerance_ends_after_one_stage_as_certain(setup, play):
    played = play(UEFL(arm="paper", first_rounds=2, tolerance=None), setup, [1, 2])
    assert played.state.finished == "certain"
    assert played.state.numbers["words"] == {}


def test_everybody_extends_until_the_last_stage_and_books_grow_by_as_much_each_time(setup, play):
    played = play(UEFL(**EVERYBODY), setup, [1, 2])
    assert played.state.numbers["stage"] == 2
    assert played.state.numbers["words"] == dict.fromkeys(CLIENTS, 4)
    played = play(UEFL(**EVERYBODY), setup, [3, 4], state=played.state)
    assert played.state.numbers["words"] == dict.fromkeys(CLIENTS, 8)
    assert played.state.finished == "stages"
    assert own_words(played, "rome").shape == (8, 6)
    model = UEFL(**EVERYBODY).model(played.state, setup)
    assert model.network.room == 8
    assert model.context[COUNT].tolist() == [8] * 4


def test_a_clients_own_words_stay_with_it(setup, play):
    played = play(UEFL(**EVERYBODY), setup, [1, 2, 3])
    assert OWN not in {name for section in played.state.tensors.values() for name in section}
    assert not torch.equal(own_words(played, "rome"), own_words(played, "oslo"))


def test_only_numbers_of_each_client_leave_at_the_check(setup, play):
    page = UEFL(**{**EVERYBODY, "first_rounds": 1})
    played = play(page, setup, [1])
    shared = sum(w.numel() for w in played.state.tensors["weights"].values())
    numbers = len([name for name in played.reports[0].client_metrics if name.startswith("check_")])
    # weights, rows and loss; rows and each number of the check; a count of words
    assert played.rounds[0].tally.bytes_up == 4 * len(CLIENTS) * ((shared + 2) + (1 + numbers) + 1)


@pytest.mark.parametrize("options", [{}, "authors"])
def test_strictly_above_the_least_or_the_authors_mean_entropy_is_uncertain(options, setup, play):
    played = play(page_of(options, first_rounds=1, tolerance=0.0), setup, [1])
    entropy = played.reports[0].client_metrics["check_entropy"]
    limit = sum(entropy.values()) / 4 if options == "authors" else min(entropy.values())
    expected = {client for client, e in entropy.items() if e > limit}
    assert {c for c, yes in played.reports[0].client_metrics["extended"].items() if yes} == expected
    assert 0 < len(expected) < 4


@pytest.mark.parametrize("tolerance", [0.3, -0.2])
@pytest.mark.parametrize("options", [{}, "authors"])
def test_the_limit_is_so_many_times_the_least_or_the_authors_mean_entropy(tolerance, options, setup, play):
    report = play(page_of(options, first_rounds=1, tolerance=tolerance), setup, [1]).reports[0]
    entropy = list(report.client_metrics["check_entropy"].values())
    expected = sum(entropy) / len(entropy) if options == "authors" else min(entropy)
    assert report.metrics["check/limit"] == pytest.approx((1 + tolerance) * expected)


def test_a_single_client_is_never_more_uncertain_than_the_others(make_problem, play):
    alone = make_problem({"oslo": 12}, silos={"validation": 5})
    assert play(UEFL(arm="paper", first_rounds=1, tolerance=0.0), alone, [1]).state.finished == "certain"


def test_the_limit_of_the_first_stage_stays_unless_each_stage_has_its_own(setup, play):
    options = {**EVERYBODY, "tolerance": -0.5}
    fixed = play(UEFL(**options), setup, [1, 2, 3])
    moving = play(UEFL(**options, threshold="each_stage"), setup, [1, 2, 3])
    name = "check/limit"
    first, second = ([r.metrics[name] for r in p.reports if name in r.metrics] for p in (fixed, moving))
    assert first[0] == first[1] == second[0] != second[1]


@pytest.mark.parametrize("options", [{}, {"start": "centres", "warm_up": 1}, {"extend": "shared"}, "authors"])
def test_a_run_that_is_killed_in_any_stage_goes_on_bit_for_bit(options, setup, play, tmp_path):
    page, private, whole = page_of(options), tmp_path / "whole", None
    for number in range(1, 6):
        whole = play(page, setup, [number], state=whole, private=ClientStore(str(private))).state
        save_state(tmp_path / f"checkpoint{number}", whole, number)
        shutil.copytree(private, tmp_path / f"killed{number}")
    for killed in range(1, 5):
        state, number, _ = load_state(tmp_path / f"checkpoint{killed}")
        rest = range(number + 1, 6)
        resumed = play(page, setup, rest, state=state, private=ClientStore(str(tmp_path / f"killed{killed}")))
        assert resumed.state.sha256() == whole.sha256()


@pytest.mark.parametrize("options", [{}, "authors", {"start": "centres", "warm_up": 1}])
def test_dealing_does_not_matter_with_books_of_different_sizes(options, setup, play):
    page = page_of(options, tolerance=0.0)
    one, two = (play(page, setup, [1, 2, 3], workers=workers, stack=2) for workers in (1, 2))
    assert one.state.sha256() == two.state.sha256()


@pytest.mark.parametrize("options", [{}, {"start": "centres", "warm_up": 1}, "authors", {"extend": "shared"}])
def test_of_an_ensemble_the_first_member_is_the_run_without_one_and_the_second_has_words_of_its_own(
    options, ensemble, setup, play, tmp_path
):
    """Where everybody is extended, members do not decide about each other."""
    page, first = page_of(options), "0/"
    together = play(page, ensemble, [1, 2, 3], private=ClientStore(str(tmp_path / "together")))
    alone = play(page, setup, [1, 2, 3], private=ClientStore(str(tmp_path / "alone")))
    for name, w in alone.state.tensors["weights"].items():
        assert torch.equal(together.state.tensors["weights"][first + name], w), name
    counts = alone.state.numbers["words"]
    assert together.state.numbers["words"] == {f"{m}/{c}": n for m in (0, 1) for c, n in counts.items()}
    for client in CLIENTS:
        both = together.private.load(SECTION, together.state.private[SECTION], client)
        own = alone.private.load(SECTION, alone.state.private[SECTION], client)
        assert all((both[first + name] == w).all() for name, w in own.items())
        assert not own[OWN].size or (both[f"1/{OWN}"] != own[OWN]).any()
    shared = together.state.tensors["weights"] | together.state.tensors["start"]
    assert not torch.equal(shared[f"0/{SHARED}"], shared[f"1/{SHARED}"])


def test_with_an_ensemble_the_check_is_of_all_members_together(ensemble, play):
    """Without passes it is the pure deep ensemble, of which dropout is off."""
    page = UEFL(**{**EVERYBODY, "passes": 0, "first_rounds": 1})
    played = play(page, ensemble, [1])
    model = page.model(replace(played.state, numbers={**played.state.numbers, "room": 0, "words": {}}), ensemble)
    rows = played.reports[0].client_metrics
    for client in CLIENTS:
        stack = Stack((client,), 1)
        weights, _ = load_weights(model.select([client]), stack, played.private, "cpu")
        x = load_rows(ensemble.silos, stack, "validation", "cpu").x
        said = [one.network.apply_stack(one.of(weights), {}, x, None) for one in model.network.single_networks]
        p = torch.stack([torch.softmax(logits.double(), -1) for logits in said])
        entropy, each = torch.special.entr(p.mean(0)).sum(-1).mean(), torch.special.entr(p).sum(-1).mean()
        assert rows["check_entropy"][client] == pytest.approx(float(entropy))
        assert rows["check_mutual_information"][client] == pytest.approx(float(entropy - each), abs=1e-9)
        counts = torch.tensor([x.shape[1]])
        told = [
            code_usage(one.network, one.of(weights), {}, x, counts, "batched") for one in model.network.single_networks
        ]
        assert rows["check_words_used"][client] == sum(float(of["words_used"]) for of in told) / 2
    assert min(rows["check_mutual_information"].values()) > 0
    assert rows["words"] == dict.fromkeys(CLIENTS, 8.0), "of one member: 4 that are shared, and 4"
    assert "4 get 4 codewords in each member" in played.reports[0].messages[0]


@pytest.mark.parametrize("options", [{}, {"start": "centres", "warm_up": 1}, "authors"])
def test_a_run_of_an_ensemble_that_is_killed_goes_on_bit_for_bit(options, ensemble, play, tmp_path):
    page = page_of(options, tolerance=0.0, **({} if options == "authors" else {"passes": 0}))
    whole = play(page, ensemble, [1, 2, 3, 4], private=ClientStore(str(tmp_path / "whole")))
    half = play(page, ensemble, [1, 2], private=ClientStore(str(tmp_path / "half")))
    save_state(tmp_path / "checkpoint", half.state, 2)
    state, number, _ = load_state(tmp_path / "checkpoint")
    resumed = play(page, ensemble, [number + 1, 4], state=state, private=ClientStore(str(tmp_path / "half")))
    assert resumed.state.sha256() == whole.state.sha256()


def test_members_whose_common_centres_are_fewer_shorten_every_members_book(ensemble, play):
    """A second member whose features are all zero has one centre."""
    page = UEFL(arm="paper", start="centres", warm_up=0, words=6)
    state = page.init(ensemble)
    dead = {n: w * 0 if n.startswith("1/dense0") else w for n, w in state.tensors["weights"].items()}
    played = play(page, ensemble, [1], state=state.with_tensors(weights=dead))
    assert [len(played.state.tensors["weights"][f"{m}/{SHARED}"]) for m in (0, 1)] == [1, 1]


def test_as_many_at_random_are_extended_as_are_uncertain(setup, play):
    page = UEFL(arm="paper", words=4, first_rounds=1, tolerance=0.0, extend="random")
    report = play(page, setup, [1]).reports[0]
    assert sum(report.client_metrics["extended"].values()) == report.metrics["clients/uncertain"] > 0


@pytest.mark.parametrize("most", [1, 2, 3])
def test_where_only_some_get_words_it_is_those_that_doubt_most(most, setup, play):
    page = UEFL(**{**EVERYBODY, "first_rounds": 1, "most": most})
    report = play(page, setup, [1]).reports[0]
    entropy = report.client_metrics["check_entropy"]
    assert len(set(entropy.values())) == report.metrics["clients/uncertain"] == 4
    chosen = {client for client, yes in report.client_metrics["extended"].items() if yes}
    assert chosen == set(sorted(entropy, key=entropy.get)[-most:])
    assert report.metrics["clients/extended"] == most


def test_no_more_are_drawn_than_most_and_who_is_drawn_follows_from_seed_round_and_name(setup, make_round):
    """Not from the order in which clients are listed; with enough rounds everybody's turn comes."""
    page, clients = UEFL(arm="paper", extend="random", most=2), setup.silos.clients
    turned = replace(setup, silos=setup.silos.select(clients[::-1]))
    drawn = [page._select_extended(list(clients[:3]), make_round(setup, number)) for number in range(1, 40)]
    assert {len(names) for names in drawn} == {2}
    assert [set(page._select_extended(list(clients[:3]), make_round(turned, n))) for n in range(1, 40)] == list(
        map(set, drawn)
    )
    assert {name for names in drawn for name in names} == set(clients)
    another = [page._select_extended(list(clients[:3]), make_round(replace(setup, seed=1), n)) for n in range(1, 40)]
    assert another != drawn
    assert page._select_extended([], make_round(setup)) == []


def test_the_shared_book_can_start_anew_instead(setup, play):
    page = UEFL(**{**EVERYBODY, "extend": "shared"})
    played = play(page, setup, [1, 2])
    assert played.state.numbers["words"] == {}
    assert played.state.numbers["stage"] == 2


def test_the_authors_code_goes_on_with_the_last_silos_words(setup, play):
    played = play(UEFLAuthors(words=4, first_rounds=1, tolerance=-0.99, stages=2), setup, [1])
    assert played.state.numbers["words"] == dict.fromkeys(CLIENTS, 4)
    assert SHARED not in played.state.tensors["weights"]
    stored = [played.private.load(SECTION, played.state.private[SECTION], client) for client in setup.silos.clients]
    for one in stored[1:]:
        assert torch.equal(torch.from_numpy(one[SHARED]), torch.from_numpy(stored[0][SHARED]))
        assert not torch.equal(torch.from_numpy(one[OWN]), torch.from_numpy(stored[0][OWN]))


def test_what_is_set_beside_an_arm_stays():
    assert UEFL(words=16).words == 16
    assert UEFL(arm="paper").words == 32


@pytest.mark.parametrize("unseen", ["shared", "own", "union", "nearest"])
def test_in_every_member_a_client_that_never_took_part_reads_the_words_that_it_is_told_to(
    unseen, ensemble, play, make_round
):
    page = UEFL(**{**EVERYBODY, "unseen": unseen})
    there = replace(ensemble, silos=ensemble.silos.select(["oslo", "lyon", "rome"]))
    played = play(page, there, [1, 2])
    round = make_round(ensemble, 3, private=played.private)
    model = page.scored_model(played.state, round)
    for member in (0, 1):
        count = dict(zip(model.clients, model.context[f"{member}/{COUNT}"].tolist(), strict=True))
        assert count["bonn"] in {"shared": [0], "own": [4], "union": [12], "nearest": [0, 4]}[unseen]
        assert bool(count["bonn"]) == ("bonn" in model.personal.refs)
        assert count["oslo"] == 4
    table = by_client(round.map_clients(evaluate, model, training=ensemble.training))
    before = by_client(round.map_clients(evaluate, page.model(played.state, ensemble), training=ensemble.training))
    assert table["oslo"] == before["oslo"]
    assert table["bonn"]["test/loss"] < 10


@pytest.mark.parametrize("unseen", ["shared", "own", "union", "nearest"])
def test_a_client_that_never_took_part_reads_the_words_that_it_is_told_to(unseen, setup, play, make_round):
    page = UEFL(**{**EVERYBODY, "unseen": unseen})
    there = replace(setup, silos=setup.silos.select(["oslo", "lyon", "rome"]))
    played = play(page, there, [1, 2])
    round = make_round(setup, 3, private=played.private)
    model = page.scored_model(played.state, round)
    count = dict(zip(model.clients, model.context[COUNT].tolist(), strict=True))
    assert count["bonn"] in {"shared": [0], "own": [4], "union": [12], "nearest": [0, 4]}[unseen]
    assert count["oslo"] == 4
    table = by_client(round.map_clients(evaluate, model, training=setup.training))
    before = by_client(round.map_clients(evaluate, page.model(played.state, setup), training=setup.training))
    assert table["oslo"] == before["oslo"]
    assert table["bonn"]["test/loss"] < 10


def test_with_the_words_that_are_nearest_a_client_is_no_farther_than_with_the_shared_ones(setup, play, make_round):
    page = UEFL(**{**EVERYBODY, "unseen": "nearest"})
    there = replace(setup, silos=setup.silos.select(["oslo", "lyon", "rome"]))
    played = play(page, there, [1, 2])
    refs = page.scored_model(played.state, make_round(setup, 3, private=played.private)).personal.refs
    assert refs.get("bonn") in {None, *(refs[c] for c in there.silos.clients)}


@pytest.mark.parametrize(("where", "lender"), [(10, "oslo"), (-10, "lyon"), (0, None)])
def test_the_nearest_words_are_nearest_to_training_rows(where, lender, make_problem, play, make_round):
    """Features are the rows themselves, and nobody moves; where the shared words are, and at 0, nobody lends."""
    middle = {"oslo": 10, "lyon": -10, "rome": 40, "bonn": where}

    def rows_of(client, total):
        x = np.random.default_rng(list(client.encode())).normal(size=(total, 5)) * 0.1
        x[: CLIENTS[client]] += middle[client]
        x[CLIENTS[client] :] += 40  # validation and test rows of everybody are where rome is
        return x, np.zeros(total, np.int64)

    setup = make_problem(CLIENTS, network=MLP(5, (), 3), optimiser=SGD(0.0), silos={"rows_of": rows_of})
    page = UEFL(**{**EVERYBODY, "unseen": "nearest", "first_rounds": 1, "start_scale": 0.01})
    there = replace(setup, silos=setup.silos.select(["oslo", "lyon", "rome"]))
    played = play(page, there, [1])
    refs = page.scored_model(played.state, make_round(setup, 2, private=played.private)).personal.refs
    assert refs.get("bonn") == (refs[lender] if lender else None)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 4),
        ({"joining": "shared"}, 0),
        ({"tolerance": None, "until": "budget"}, 0),
        ({"extend": "shared"}, 0),
        ({"stages": 1, "until": "budget"}, 0),
    ],
)
def test_a_client_that_joins_after_the_first_check_gets_its_own_words_at_once(options, count, setup, play):
    page = UEFL(**{**EVERYBODY, "more_rounds": 3, **options})
    played = play(page, setup, [1, 2, 3], absent={1: ["bonn"], 2: ["bonn"]})
    assert played.state.numbers["words"].get("bonn", 0) == count
    said = "joined, with codewords of their own: bonn"
    assert (said in played.reports[2].messages) == bool(count)
    again = play(page, setup, [4], state=played.state)
    assert again.state.numbers["words"].get("bonn", 0) == count
    assert not again.reports[0].messages


def test_a_client_that_joins_before_the_first_check_is_asked_there(setup, play):
    page = UEFL(**{**EVERYBODY, "tolerance": 1e6, "until": "budget"})
    played = play(page, setup, [1, 2, 3], absent={1: ["bonn"]})
    assert played.state.numbers["words"] == {}


@pytest.mark.parametrize("options", [{}, "authors"])
@pytest.mark.parametrize("late", ["oslo", "bonn"])
def test_a_client_that_joins_changes_no_words_that_are_there(options, late, setup, play):
    page = page_of(options, tolerance=-0.99, more_rounds=9)
    before = play(page, setup, [1, 2], absent={1: [late], 2: [late]})
    words = {c: own_words(before, c) for c in before.state.private[SECTION]}
    assert late not in words
    frozen = replace(setup, training=replace(setup.training, optimiser=Adam(0.0)))
    after = play(page, frozen, [3], state=before.state)
    for client, own in words.items():
        assert torch.equal(own_words(after, client), own), client
    assert own_words(after, late).abs().sum() > 0


@pytest.mark.parametrize("unseen", ["own", "union", "nearest"])
def test_before_there_are_words_a_client_that_never_took_part_changes_nobodys_answer(unseen, setup, play, make_round):
    page = UEFL(arm="paper", start="centres", warm_up=3, unseen=unseen)
    played = play(page, setup, [1], absent={1: ["bonn"]})
    round = make_round(setup, 2, private=played.private)
    answers = [page.scored_model(played.state, round), page.model(played.state, setup)]
    scored = [by_client(round.map_clients(evaluate, model, training=setup.training)) for model in answers]
    assert scored[0] == scored[1]


@pytest.mark.parametrize(("unseen", "most", "rounds"), [("own", None, [1, 2, 3]), ("union", 1, [1, 2])])
def test_silos_with_fewer_tokens_than_words_lend_and_keep_what_they_have(unseen, most, rounds, setup, play, make_round):
    page = UEFL(**{**EVERYBODY, "words": 30, "most": most, "unseen": unseen})
    played = play(page, setup, rounds, absent={number: ["bonn"] for number in rounds})
    assert max(played.state.numbers["words"].values()) < played.state.numbers["room"]
    model = page.scored_model(played.state, make_round(setup, 4, private=played.private))
    scored = by_client(
        make_round(setup, 4, private=played.private).map_clients(evaluate, model, training=setup.training)
    )
    assert scored["bonn"]["test/loss"] < 10


def test_bad_options_are_refused_in_words():
    for options in ({"tolerance": -1.01}, {"passes": -1}, {"segments": 0}, {"words": 0}, {"stages": 0}):
        with pytest.raises(ValidationError):
            UEFL(**options)


def test_words_start_later_if_nobody_is_there_when_they_should(setup, play, make_round):
    page = UEFL(arm="paper", start="centres", warm_up=1, words=3)
    after = play(page, setup, [1])
    later = play(page, setup, [3], state=after.state)  # in round 2 everybody had dropped out
    assert len(later.state.tensors["weights"][SHARED]) == 3


def test_words_wait_for_a_client_with_rows_enough_to_tell_of_them(make_problem, play):
    """Without words a stage does not pass, and nothing else goes wrong; a shared book that starts anew stays if it must."""
    setup = make_problem({"few": 9, "many": 30}, network=MLP(5, (6,), 3), silos={"validation": 5})
    page = UEFL(arm="paper", start="centres", warm_up=1, words=3, first_rounds=2, tolerance=-1, extend="shared")
    played = play(page, setup, [1, 2, 3], absent={2: ["many"], 3: ["many"]})
    assert [report.messages for report in played.reports] == [
        (),
        *[("codewords start when a client with 10 different training rows takes part",)] * 2,
    ]
    assert played.state.numbers["since"] == 0
    assert len(played.state.tensors["weights"][SHARED]) == 0
    later = play(page, setup, [4, 5], state=played.state, absent={5: ["many"]})
    assert len(later.state.tensors["weights"][SHARED]) > 0
    assert (later.state.numbers["stage"], later.reports[-1].metrics["clients/extended"]) == (2, 1)


def test_segments_that_do_not_divide_the_width_are_refused_with_those_that_do(setup):
    with pytest.raises(
        UserError, match=r"method.uefl.segments: got 4, expected a divisor of the 6 channels .* Try 1 or 2"
    ):
        UEFL(segments=4).init(setup)


def test_a_network_without_features_is_refused(setup):
    from models.networks.wrappers.conditional_network import Bilinear

    with pytest.raises(
        UserError, match=r"no features that codewords could replace, expected residual, vgg16_bn, resnet18, cnn or mlp"
    ):
        UEFL().init(replace(setup, network=Bilinear(5, 3, 2, False)))


def test_a_client_without_rows_to_be_unsure_of_is_named(make_problem, play):
    setup = make_problem(CLIENTS, silos={"validation": 0})
    with pytest.raises(UserError, match=r"no validation rows for client (bonn|oslo)"):
        play(UEFL(arm="paper", first_rounds=1), setup, [1])
    assert play(UEFL(arm="paper", first_rounds=1, check_on="train"), setup, [1]).state.numbers["limit"] > 0


def test_a_diverged_client_does_not_count_as_certain(make_problem, play):
    setup = make_problem(CLIENTS, optimiser=Adam(1e30), silos={"validation": 5})
    with pytest.raises(
        DivergedError, match=r"client \w+ of .*: (got predictions|features: got numbers) that are not finite"
    ):
        play(UEFL(arm="paper", first_rounds=1), setup, [1])


def test_a_class_that_a_silo_lacks_does_no_harm(make_problem, play):
    setup = make_problem(CLIENTS, silos={"validation": 5, "one_class": "rome"})
    played = play(UEFL(**EVERYBODY), setup, [1, 2, 3])
    assert all(torch.isfinite(t).all() for s in played.state.tensors.values() for t in s.values())


def test_the_first_stage_has_no_warm_up_where_words_are_drawn(setup, play):
    page = UEFL(start="normal", words=4, first_rounds=2, tolerance=None, until="certain")
    assert page.warm_up == 10
    assert play(page, setup, [1]).state.finished is None
    assert play(page, setup, [1, 2]).state.finished == "certain"


@pytest.mark.parametrize("page", [UEFL(tolerance=None), UEFLAuthors()])
def test_a_client_without_rows_to_be_uncertain_of_is_refused_at_the_start(page, make_problem):
    setup = make_problem(CLIENTS, network=MLP(5, (6,), 3, dropout=0.2), silos={"validation": 0, "test": 0})
    with pytest.raises(UserError, match=r"got no (validation|test) rows for client bonn, expected some"):
        page.init(setup)

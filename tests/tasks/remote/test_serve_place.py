"""What a place answers, over real sessions in a folder: its part, steps, what to keep; and what its owner forbids."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.diagnosis.query_clients import moments_query
from models.client_model import Model
from models.diagnosis.client_summaries.client_summary import Layout
from models.diagnosis.client_summaries.query import Query
from models.networks.mlp import MLP
from models.prng import server_stream
from models.server_state import ClientStateRefs
from models.training.engine import Training
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD
from silos.client_store import OF_COORDINATOR, ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import OWNER_FILE, policy_of
from silos.standardizer import NO_STANDARDIZATION, Standardization, Standardizer
from silos.storage.manifest import COLUMNS, read_manifest
from silos.storage.places import part_digest
from tasks.evaluate import sum_targets
from tasks.execution import steps
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.task_runner import PlainRunner, map_clients
from tasks.local_train import local_train
from tasks.messages.round_messages import Update
from tasks.places.envelopes import Header
from tasks.remote.answer_steps import pack_call, read_answer
from tasks.remote.codec import pack, unpack
from tasks.remote.enrolment import open_sessions
from tasks.remote.gather_parts import are_parts_changed, ask_states, machine_notes, send_to_places, write_listing
from tasks.remote.place_workers import PlaceRunner, PlaceWorkers, ask_place
from tasks.remote.serve_place import KEEP, MODEL, MODEL_FILE, PART, PlaceServer, SentModel, _described, machine_of
from tasks.remote.step_list import returned_by
from tasks.remote.work_limits import check_work
from tasks.report_evidence import report_descriptor
from tests.tasks.remote.conftest import CLIENTS, calls

pytestmark = pytest.mark.filterwarnings("ignore:Logger 'prefect.task_runs'")  # there is no flow around the steps


def listing(root, apart):
    manifest, policies, _ = write_listing(root, root / "data" / "all", "all", {}, root / "no")
    return Silos.open(root / "data" / "all", "version"), manifest, policies


def test_the_coordinator_lists_what_places_hold_and_what_owners_allow(federation):
    root, apart = federation
    file = apart.places["b"].store / OWNER_FILE
    file.write_text(file.read_text().replace("methods: all", "methods: [fedavg]"))
    silos, manifest, policies = listing(root, apart)
    assert silos.clients == ("lyon", "oslo", "rome")
    assert {place: part.digest for place, part in manifest.places.items()} == {
        p: o.part for p, o in apart.places.items()
    }
    assert policies == {"rome": {"methods": ["fedavg"]}}
    assert {path.name for path in Path(silos.folder).iterdir()} == {"manifest.json", "manifest.safetensors"}
    assert ask_states(root) == {"a": "2 silos of 32 rows", "b": "1 silo of 16 rows"}


def test_a_step_runs_at_places_as_a_prefect_task_and_what_is_not_kept_is_deleted(federation, prefect):
    root, apart = federation
    silos, _, _ = listing(root, apart)
    workers = PlaceWorkers(root, print, 60)
    runner, private = PrefectRunner(workers), ClientStore(str(root / "private" / "all" / "set" / "run"))
    try:
        sent = [message for cohort in runner.map_cohorts(local_train, calls(silos, private)) for message in cohort]
        assert [message.clients for message in sent] == [("lyon", "oslo"), ("rome",)]
        stored = {
            place: sorted((opened.store / OF_COORDINATOR / "set" / "run" / "own").glob("*.safetensors"))
            for place, opened in apart.places.items()
        }
        assert {place: len(files) for place, files in stored.items()} == {"a": 1, "b": 1}
        assert not Path(private.folder).exists()
        runner.keep(private, "own", sent[0].private["own"].values())
        assert [path.exists() for (path,) in stored.values()] == [True, False]
    finally:
        workers.close()


def test_a_place_refuses_what_its_owner_does_not_allow(federation, prefect):
    root, apart = federation
    silos, _, _ = listing(root, apart)
    file = apart.places["b"].store / OWNER_FILE
    before = file.read_text()
    workers = PlaceWorkers(root, print, 60)
    private = ClientStore(str(root / "private" / "all" / "set" / "run"))
    try:
        for change, sentence in (
            ("messages: [Scores]", "got Update, expected one of Scores"),
            ("commands: [diagnose]", "got run, expected one of diagnose"),
            ("training_rows: 10", "got 9 training rows, expected 10 or more"),
        ):
            key = change.partition(":")[0]
            file.write_text(
                "".join(line for line in before.splitlines(True) if not line.startswith(key)) + change + "\n"
            )
            with pytest.raises(RefusalError, match=f"place b: .*{sentence}".replace("[", r"\[")):
                PrefectRunner(workers).map_cohorts(local_train, calls(silos, private)[1:])
    finally:
        workers.close()


def test_a_place_whose_data_changed_refuses_steps_for_the_earlier_part(federation, prefect):
    root, apart = federation
    silos, _, _ = listing(root, apart)
    manifest = Path(apart.places["b"].silos.folder) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert part_digest(manifest.parent) != apart.places["b"].part
    workers = PlaceWorkers(root, print, 60)
    try:
        with pytest.raises(UserError, match="another part of the data than this place holds"):
            PrefectRunner(workers).map_cohorts(local_train, calls(silos, ClientStore("/x/private/all"))[1:])
    finally:
        workers.close()


def test_a_place_with_other_rows_than_its_part_lists_runs_no_step(federation, prefect):
    root, apart = federation
    silos, _, _ = listing(root, apart)
    (rows,) = (path for path in Path(apart.places["b"].silos.folder).glob("*.safetensors") if path.name != COLUMNS)
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    workers = PlaceWorkers(root, print, 60)
    try:
        with pytest.raises(UserError, match=r"place b: .*rome"):
            PrefectRunner(workers).map_cohorts(local_train, calls(silos, ClientStore("/x/private/all/set/run"))[1:])
    finally:
        workers.close()


def test_a_coordinator_deletes_no_ledger_and_reads_no_path(federation):
    root, apart = federation
    file = apart.places["b"].store / "rome-1" / "ab.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"ledger")
    with open_sessions(root) as sessions:
        for names in ([], ["rome-1"]):
            private = ClientStore(str(Path("/x/private/all").joinpath(*names)))
            body = pack({"private": private, "section": "rome-1", "refs": ()})
            with pytest.raises(RefusalError, match="got no folder of a run"):
                read_answer(sessions["b"].ask(KEEP, body, 30), str, "b")
        part = sessions["b"].ask(PART, b"", 30)
    assert file.exists()
    assert b"small.npz" not in part


def test_outcomes_of_rows_are_not_sent_as_weights(write_silos, separate):
    """An authentic coordinator would read rows: a model that names each value scores them, and the outcomes are "sent"."""
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    cohort = Cohort(apart.listed.select(["rome"]), (Stack(("rome",), 1),))
    network, private = MLP(5, (), 3), ClientStore("/x/private/all/set/run")
    weights = network.init(server_stream(0, 0, "init"))
    model = Model(network, weights, clients=("rome",))
    asks, training = {"b": apart.ask("b")}, Training(CrossEntropy(), SGD(0.1), 1, 4)
    options = {"training": training, "private": private, "splits": ("train",), "keep_outcomes": True}
    (scores,) = ask_place(asks, "evaluate", (cohort, model), options)
    stolen = replace(model, shared={}, personal=ClientStateRefs("outcomes", scores.outcomes))
    with pytest.raises(RefusalError, match="got outcomes that clients keep, expected sendable"):
        ask_place(asks, "send_weights", (cohort, stolen), {"private": private})


def test_personal_layers_and_other_state_are_neither_sent_nor_read_as_something_else(write_silos, separate):
    """Each message of fedper and scaffold would pass, but their private state is fetched by steps of other methods."""
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    cohort, asks = Cohort(apart.listed.select(["rome"]), (Stack(("rome",), 1),)), {"b": apart.ask("b")}
    network, private = MLP(5, (), 3), ClientStore("/x/private/all/set/run")
    weights = network.init(server_stream(0, 0, "init"))
    bias, (head,) = {n: w for n, w in weights.items() if w.dim() == 1}, [n for n, w in weights.items() if w.dim() == 2]
    own = Model(network, bias, ClientStateRefs("head", {}, {head: weights[head]}), clients=("rome",))
    still = {"training": Training(CrossEntropy(), SGD(0.0), 1, 4), "private": private, "seed": 0, "round": 1}
    (update,) = ask_place(asks, "local_train", (cohort, own), still)
    assert update.sums.keys() == bias.keys()
    kept = replace(own, personal=ClientStateRefs("head", update.private["head"]))
    stays = "got weights that clients keep, expected"
    with pytest.raises(RefusalError, match=f"{stays} sendable"):
        ask_place(asks, "send_weights", (cohort, replace(kept, shared={})), {"private": private})
    with pytest.raises(RefusalError, match="got a weight that is shared and that clients keep"):
        ask_place(asks, "local_train", (cohort, replace(kept, shared=weights)), still)
    with pytest.raises(RefusalError, match=f"{stays} sendable"):  # a later step would send the section
        ask_place(asks, "local_train", (cohort, replace(own, shared=weights, personal={})), {**still, "keep": "head"})[
            0
        ]
    stolen = ClientStateRefs("head", update.private["head"])
    shared = {"shared": {head: weights[head]}, "personal": {n: w[None] for n, w in bias.items()}}
    for step, name in (("scaffold_train", "variates"), ("dynamic_train", "duals")):
        model = replace(own, **shared, context={head: weights[head][None]} if name == "variates" else {})
        extra = {name: stolen, **({"variate": "difference"} if name == "variates" else {"alpha": 0.1})}
        with pytest.raises(RefusalError, match=f"{stays} {name}"):
            ask_place(asks, step, (cohort, model), {**still, **extra})
    with pytest.raises(RefusalError, match=f"{stays} sites"):
        ask_place(
            asks, "remove_sites", (cohort, replace(own, shared={}, personal={}, context=stolen)), {"private": private}
        )


def test_a_diagnosis_of_other_features_or_scaled_rows_is_refused(write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    place = apart.places["b"]
    server = PlaceServer(Path(place.silos.folder), place.store, nullcontext, lambda *_: None)
    query = Query("another", Layout(("x0",), (None,), np.zeros(1), np.ones(1), 4, 3))
    with pytest.raises(RefusalError, match="got the schema another"):
        server._check("report_summary", place.silos, {"query": query})
    scaled = replace(place.silos, scaling=Standardization(inputs=Standardizer((0.0,) * 5, (2.0,) * 5)))
    for step in ("report_summary", "report_moments"):
        with pytest.raises(RefusalError, match="got rows that are scaled"):
            server._check(step, scaled, {})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"training": Training(CrossEntropy(), SGD(0.1), 10**9, 4)},
            "epochs: got 1,000,000,000, expected at most 10,000",
        ),
        (
            {"training": Training(CrossEntropy(), SGD(0.1), 1, 10**9)},
            "batch: got 1,000,000,000, expected at most 10,000",
        ),
        ({"keep": None, "passes": [{"passes": 10**6}]}, "passes: got 1,000,000"),
        ({"evidence": partial(report_descriptor, classes=10**8)}, "classes: got 100,000,000"),
        ({"free": 100}, "weights: got .* for the clients of one stack, expected at most"),
    ],
)
def test_a_step_that_would_take_a_place_too_long_is_refused(write_silos, separate, change, sentence):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    (cohort, model), options = calls(apart.listed, ClientStore("/x/private/all/a/run"))[0]
    free = change.pop("free", None)
    check_work({"cohort": cohort, "model": model, **options})
    with pytest.raises(RefusalError, match=sentence):
        check_work({"cohort": cohort, "model": model, **options, **change}, free)


def test_a_place_asks_its_own_check_of_each_step(write_silos, separate):
    """Work without an end, padding to a million clients, and training on few rows of a silo that only scores."""
    domains = {"oslo": "a", "lyon": "a", "rome": "a", "one": "b", "two": "b"}
    roles = [{"kind": "fresh", "per_domain": 1}]
    whole = write_silos({**dict.fromkeys(domains, 2), **CLIENTS}, roles=roles, domains=domains)
    apart = separate(whole, [["oslo", "lyon", "one", "two"], ["rome"]])
    place = apart.places["a"]
    server = PlaceServer(Path(place.silos.folder), place.store, nullcontext, lambda *_: None)
    (fresh,) = {"one", "two"} - {*apart.listed.federated().clients}
    silos = apart.listed.select([fresh])
    (args, options) = calls(silos, ClientStore("/x/private/all/set/run"))[0]

    def ask(step, cohort, **changes):
        header = Header("0" * 32, "a", 1, "0" * 32, "ask", step, "1")
        arguments = {**options, **changes}
        return read_answer(
            server.respond(header, pack_call(step, (cohort, args[1]), arguments)), returned_by(step), "a"
        )

    long = Training(CrossEntropy(), SGD(0.1), 10**9, 4)
    with pytest.raises(RefusalError, match="place a: epochs: got 1,000,000,000"):
        ask("local_train", args[0], training=long)
    with pytest.raises(UserError, match=r"got a stack of 1 clients padded to 5, .*than the 4 silos of this place"):
        ask("local_train", Cohort(silos, (Stack((fresh,), 5),)))
    file = place.store / OWNER_FILE
    file.write_text(file.read_text().replace("training_rows: 1", "training_rows: 5"))
    with pytest.raises(RefusalError, match=f"client {fresh}: got 2 training rows, expected 5"):
        ask("local_train", args[0])


def test_a_place_that_answers_for_anothers_client_is_not_believed(write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    ((first, options), (second, _)) = calls(apart.listed, ClientStore("/x/private/all/a/run"))

    def lie(step, content):
        return apart.ask("b")(step, pack_call(step, second, options))

    with pytest.raises(UserError, match=r"Update\.clients: got rome, expected some of the clients of the request"):
        ask_place({"a": lie}, "local_train", first, options)


def test_a_place_without_an_owners_file_lists_nothing_and_runs_no_step(federation):
    root, apart = federation
    silos, _, _ = listing(root, apart)
    (apart.places["b"].store / OWNER_FILE).unlink()
    private = ClientStore(str(root / "private" / "all" / "set" / "run"))
    with pytest.raises(RefusalError, match="so that these silos report nothing"):
        map_clients(PlaceRunner(root=root), sum_targets, silos, stack=4, private=private)
    shutil.rmtree(silos.folder)
    with pytest.raises(RefusalError, match="so that these silos report nothing"):
        listing(root, apart)
    assert policy_of(apart.places["a"].store, "oslo")
    assert read_manifest(Path(apart.listed.folder)).places


def test_a_place_keeps_a_model_that_it_can_read_and_no_other(federation):
    root, apart = federation
    network = MLP(5, (), 3)
    model = Model(
        network, network.init(server_stream(0, 0, "init")), ClientStateRefs("own", {"rome": "ab/0"}), clients=("rome",)
    )
    private = ClientStore("/x/private/all/set/run")
    sent = SentModel("a run", "ditto", "{}", "3", "runs/set/run", NO_STANDARDIZATION, model, private)
    found = send_to_places(root, {"b": sent})
    assert found == [{"place": "b", "joined": True, "answer": "has runs/set/run"}]
    place = apart.places["b"]
    opened = unpack((place.store / OF_COORDINATOR / MODEL_FILE).read_bytes(), SentModel, place)
    assert opened.private.folder == str(place.store / OF_COORDINATOR / "set" / "run")
    assert opened.model.personal.refs == {"rome": "ab/0"}
    assert all(torch.equal(opened.model.shared[name], weights) for name, weights in model.shared.items())
    with open_sessions(root) as sessions, pytest.raises(UserError, match="value"):
        read_answer(sessions["b"].ask(MODEL, pack({"name": "no model"}), 30), str, "b")
    assert (place.store / OF_COORDINATOR / MODEL_FILE).exists()
    with pytest.raises(UserError, match="place c: got data of this place, which has not joined"):
        send_to_places(root, {"c": sent})


def test_a_silo_that_does_not_train_lets_others_keep_their_state_and_predict(federation):
    root, apart = federation
    place = apart.places["a"]
    file = place.store / OWNER_FILE
    file.write_text(file.read_text().replace("silos: {}", "silos: {oslo: {commands: [diagnose]}}"))
    private = ClientStore("/x/private/all/set/run")
    network = MLP(5, (), 3)
    model = Model(network, network.init(server_stream(0, 0, "init")))
    sent = SentModel("a run", "fedavg", "{}", "3", "runs/set/run", NO_STANDARDIZATION, model, private)
    assert send_to_places(root, {"a": sent})[0]["answer"] == "has runs/set/run"
    own = replace(sent, model=replace(model, personal=ClientStateRefs("own", {"oslo": "ab/0"}), clients=("oslo",)))
    for wrong, why in ((own, "client oslo: got run"), (replace(sent, settings="["), "settings: got \\[")):
        with pytest.raises(UserError, match=why):
            send_to_places(root, {"a": wrong})
    with open_sessions(root) as sessions:
        body = pack({"private": private, "section": "own", "refs": ()})
        assert read_answer(sessions["a"].ask(KEEP, body, 30), str, "a") == ""


def test_a_step_of_a_plugin_is_not_mistaken_for_one_of_a_place(federation):
    def local_train(cohort: Cohort) -> list[Update]:
        return []

    root, apart = federation
    with pytest.raises(UserError, match="step local_train: got one of a plugin, expected siloflow's own"):
        PlaceRunner(root=root).map_cohorts(steps.step(local_train), [((apart.listed,), {})])


def test_machines_that_differ_are_named(federation):
    assert write_listing(federation[0], federation[0] / "data" / "all", "all", {}, federation[0] / "no")[2] == []
    assert machine_notes({"a": machine_of(), "b": {**machine_of(), "torch": "1.0"}}) == [
        f"torch differs, so that the last bits of results may, too: {torch.__version__} at the coordinator, a; 1.0 at b"
    ]


def test_what_runs_without_a_flow_asks_places_as_well(federation):
    root, apart = federation
    silos, _, _ = listing(root, apart)
    private = ClientStore(str(root / "private" / "all" / "set" / "run"))
    runner = PlaceRunner(root=root)
    messages = map_clients(runner, sum_targets, silos, stack=4, private=private)
    here = map_clients(PlainRunner(), sum_targets, apart.together, stack=4, private=private)
    assert [(m.clients, m.rows.tolist()) for m in messages] == [(m.clients, m.rows.tolist()) for m in here]
    assert not are_parts_changed(root, Path(silos.folder))
    (own,) = Path(apart.places["b"].silos.folder).glob("manifest.json")
    own.write_bytes(own.read_bytes() + b"\n")
    assert are_parts_changed(root, Path(silos.folder))


def test_reports_of_a_diagnosis_may_read_an_earlier_part_and_training_may_not(write_silos, separate, tmp_path):
    """The place's present part is another than the one that is asked for, and its version store has that."""
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    place, asked = apart.places["b"], []
    shutil.copytree(place.silos.folder, tmp_path / "now")
    manifest = tmp_path / "now" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")

    def earlier(digest):
        asked.append(digest)
        return nullcontext(place.silos)

    server = PlaceServer(tmp_path / "now", place.store, nullcontext, lambda *_: None, earlier)
    cohort = Cohort(apart.listed.select(["rome"]), (Stack(("rome",), 1),))
    query, private = moments_query(apart.listed), ClientStore("/x/private/all")
    body = pack_call("report_summary", (cohort,), {"private": private, "query": query})
    header = Header("0" * 32, "b", 1, "", "ask", "report_summary", "1")
    (message,) = read_answer(server.respond(header, body), returned_by("report_summary"), "b")
    assert asked == [place.part]
    assert message.clients == ("rome",)
    body = pack_call("sum_targets", (cohort,), {"private": private})
    with pytest.raises(UserError, match="another part of the data than this place holds"):
        read_answer(server.respond(replace(header, subject="sum_targets"), body), returned_by("sum_targets"), "b")


def test_the_log_of_requests_names_the_silos_of_a_step(write_silos, separate):
    place = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]]).places["a"]
    assert _described(place.silos, {}) == "of lyon, oslo"

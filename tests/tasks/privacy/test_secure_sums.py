"""Secure sums in a round: the same sum as without masks, one noise, and silos that send nothing else."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedopt import FedOpt
from flows.methods.fedprox import FedProx
from flows.methods.finetune import FineTune
from flows.methods.local_only import LocalOnly
from flows.methods.round_context import RoundContext
from flows.training.trainer import play_method_round
from models.networks.mlp import MLP
from models.training.engine import Privacy, SecureSums
from models.training.keyed_noise import KeyedNormals
from models.training.objectives import Focal, SquaredError
from models.training.optimizers import SGD
from models.training.private_training import clipped_sums
from silos.client_store import ClientStore
from silos.cohort import Silos, make_stacks
from silos.errors import ClientsAwayError, MethodError, RefusalError, UserError
from silos.privacy.masked_sums import SumMember
from silos.privacy.owner_file import OWNER_FILE, make_store
from silos.privacy.sum_ledger import SECOND, SumLedger
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import PlainRunner
from tasks.local_train import local_train
from tasks.messages.sum_messages import MaskedGradients
from tasks.privacy.record_answers import cost_of_run
from tasks.privacy.secure_sums import confirm_answered, mask_gradients, reveal_shares, seal_shares

CLIENTS = {"c0": 24, "c1": 31, "c2": 18, "c3": 20}
RATE = 0.3


def privacy(least=0, colluders=1, noise=2.0):
    return Privacy(0.5, noise, 20.0, 4, SecureSums(least, colluders))


@pytest.fixture
def problem(make_problem):
    return make_problem(CLIENTS, network=MLP(5, (6,), 3), optimiser=SGD(RATE), epochs=1, privacy=privacy())


@dataclass(frozen=True)
class LossyRunner(PlainRunner):
    """Loses the answers of clients in steps, as places that stop answering, and notes what each step was asked and sent.

    Attributes:
        lost: Step to the clients whose answers are lost.
    """

    lost: dict[str, set[str]] = field(default_factory=dict)
    calls: list = field(default_factory=list)

    def map_cohorts(self, task, calls):
        answers = []
        for args, options in calls:
            self.calls.append((task, args, options))
            clients = {*args[0].clients}
            if not clients & self.lost.get(task.name, set()):
                answers.append(task.fn(*args, **options))
        if len(answers) < len(calls):
            error = ClientsAwayError("there", 1.0)
            error.answers = answers
            raise error
        return answers


def play(setup, store, rounds=(1,), page=None, runner=None, stack=1):
    """Play rounds, each client in a cohort of its own; return the weights after each."""
    make_store(Path(store.folder).parent)
    if setup.training.privacy.secure and setup.training.privacy.secure.colluders == 0:
        owners_file(store, "colluders: 1 ", "colluders: 0 ")
    page = page or FedAvg()
    setup, state, found = replace(setup, stack=stack), page.init(setup), []
    for number in rounds:
        context = RoundContext(number, setup, setup.silos.clients, (), runner or PlainRunner(4), store)
        state, _ = play_method_round(page, state, context)
        found.append(state.tensors["weights"])
    return found


def owners_file(store, before, after):
    make_store(Path(store.folder).parent)
    file = Path(store.folder).parent / OWNER_FILE
    file.write_text(file.read_text().replace(before, after))


def bound(store):
    """What the silos' ledgers have of secure sums."""
    logs = Path(store.folder).parent.glob(".ledgers/*/ledger.log")
    return [line for log in logs for line in log.read_text().splitlines() if '"sum"' in line]


def flat(weights):
    return torch.cat([w.flatten() for _, w in sorted(weights.items())])


@pytest.fixture
def store(tmp_path):
    return ClientStore(str(tmp_path / "main" / "private" / "run"))


def another(tmp_path, name):
    return ClientStore(str(tmp_path / name / "private" / "run"))


def without_noise(monkeypatch):
    monkeypatch.setattr(KeyedNormals, "fill", lambda _, numbers: numbers.zero_())


def plain_mean(setup, clients=None):
    """Return the step of the mean of clipped sums, without noise and without masks, in float64."""
    clients = clients or list(setup.silos.clients)
    (stack,) = make_stacks(setup.silos.select(clients), len(clients))
    rows = load_rows(setup.silos, stack, "train", "cpu")
    start = FedAvg().init(setup).tensors["weights"]
    weights = {name: w[None].repeat(len(clients), *[1] * w.dim()) for name, w in start.items()}
    used = (torch.arange(rows.y.shape[1]) < rows.counts[:, None]).float()
    sums = clipped_sums(setup.network, weights, {}, rows, setup.training, used)
    scale = RATE / (setup.training.privacy.divisor * len(clients))
    return {name: w.double() - scale * sums[name].double().sum(0) for name, w in start.items()}


def test_without_noise_a_round_is_the_step_of_the_mean_clipped_gradient(problem, store, monkeypatch):
    without_noise(monkeypatch)
    (found,) = play(problem, store)
    torch.testing.assert_close(flat(found).double(), flat(plain_mean(problem)), rtol=0, atol=1e-5)


def test_masks_change_no_bit_of_the_sum(problem, store, tmp_path, monkeypatch):
    """The integers of all silos add up to what the server reads, modulo nothing: here masks are left out."""
    (masked,) = play(problem, store)
    monkeypatch.setattr(SumMember, "mask", lambda _self, numbers, *_: numbers.copy())
    monkeypatch.setattr("tasks.privacy.secure_sums.unmask", lambda total, *_: total)
    copied = another(tmp_path, "copied")
    _copy_secrets(store, copied, problem)
    (plain,) = play(problem, copied)
    assert torch.equal(flat(masked), flat(plain))


def _copy_secrets(store, copied, setup):
    for client in setup.silos.clients:
        homes = [SumLedger(str(Path(each.folder).parent), client)._home for each in (store, copied)]
        homes[1].mkdir(parents=True)
        (homes[1] / "secret").write_bytes((homes[0] / "secret").read_bytes())


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_bits_do_not_depend_on_who_shares_a_task(stack, problem, store, tmp_path):
    first = play(problem, store, (1, 2))
    copied = another(tmp_path, "copied")
    _copy_secrets(store, copied, problem)
    again = play(problem, copied, (1, 2), runner=PlainRunner(1), stack=stack)
    if stack == 1:
        assert all(torch.equal(flat(a), flat(b)) for a, b in zip(first, again, strict=True))
    # stacks of other sizes may sum rows in other orders; then weights of the next round, and so its noise, differ
    torch.testing.assert_close(flat(first[0]), flat(again[0]), rtol=0, atol=1e-5)


def test_the_noise_of_a_round_is_that_of_one_sum_and_not_of_each_silo(make_problem, tmp_path, monkeypatch):
    """Over several rounds without rows, the server's step is noise alone; with one colluder of four there is 4/3 of it."""
    wide = make_problem(CLIENTS, network=MLP(5, (300,), 3), optimiser=SGD(RATE), epochs=1, privacy=privacy())
    monkeypatch.setattr(
        "tasks.privacy.secure_sums.shares_of_rows", lambda _s, _t, rows: torch.zeros_like(rows.y, dtype=torch.float32)
    )
    (found,) = play(wide, another(tmp_path, "noise"))
    step = flat(found).double() - flat(FedAvg().init(wide).tensors["weights"]).double()
    noise = step / (RATE / (20.0 * 4))  # of the sum
    deviation = 2.0 * 0.5 * math.sqrt(4 / 3)
    assert float(noise.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(noise)))


@pytest.mark.parametrize(
    "lost",
    [
        {"seal_shares": {"c3"}},
        {"mask_gradients": {"c3"}},
        {"confirm_answered": {"c3"}},
        {"reveal_shares": {"c3"}},
        {"report_sum_keys": {"c0"}},
        {"report_sum_keys": {"c0"}, "mask_gradients": {"c2"}},
    ],
)
def test_silos_may_stop_after_each_step_while_enough_are_left(lost, make_problem, store, monkeypatch):
    without_noise(monkeypatch)
    clients = {**CLIENTS, "c4": 22}
    setup = make_problem(
        clients, network=MLP(5, (6,), 3), optimiser=SGD(RATE), epochs=1, privacy=privacy(least=3, colluders=0)
    )
    (found,) = play(setup, store, runner=LossyRunner(5, lost=lost))
    gone = {
        client for step, away in lost.items() if step not in ("confirm_answered", "reveal_shares") for client in away
    }
    left = [client for client in clients if client not in gone]
    torch.testing.assert_close(flat(found).double(), flat(plain_mean(setup, left)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "step", ["report_sum_keys", "seal_shares", "mask_gradients", "confirm_answered", "reveal_shares"]
)
def test_a_round_that_loses_too_many_is_played_again_without_them(step, problem, store, monkeypatch):
    without_noise(monkeypatch)
    with pytest.raises(ClientsAwayError):
        play(problem, store, runner=LossyRunner(4, lost={step: {"c3"}}))
    fewer = replace(problem, silos=problem.silos.select(["c0", "c1", "c2"]))
    (found,) = play(fewer, store)
    torch.testing.assert_close(flat(found).double(), flat(plain_mean(problem, ["c0", "c1", "c2"])), rtol=0, atol=1e-5)


def _spent(store, client):
    return sum(entry.rho for entry in SumLedger(str(Path(store.folder).parent), client).entries())


def _ledgers(store):
    return {path.name: path.read_bytes() for path in Path(store.folder).parent.glob(".ledgers/*/*.log")}


def test_a_repeated_round_gets_the_same_bytes_and_costs_nothing(problem, store):
    first, before = play(problem, store, (1, 2)), _ledgers(store)
    again = play(problem, store, (1, 2))
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(first, again, strict=True))
    assert _ledgers(store) == before


def test_a_sum_that_was_cut_is_made_again_with_other_noise_if_others_are_present(make_problem, store):
    """Silos have answered for five, and are now asked for four: they refuse, and the sum gets another name."""
    clients = {**CLIENTS, "c4": 22}
    setup = make_problem(clients, network=MLP(5, (), 3), epochs=1, privacy=privacy(least=4, colluders=0))
    first = play(setup, store)
    runner = LossyRunner(5, lost={"seal_shares": {"c4"}})
    second = play(setup, store, runner=runner)
    assert not torch.equal(flat(first[0]), flat(second[0]))
    masked = [options["session"].attempt for task, _, options in runner.calls if task.name == "mask_gradients"]
    assert masked == [0] + [1] * 4, "the first silo refused the sum of five"
    play(setup, store, (2, 3))
    whole = cost_of_run(setup.training.privacy, 1)
    assert _spent(store, "c0") == pytest.approx(whole), "four answers were paid when the run began"
    play(setup, store, (4,))
    assert _spent(store, "c0") == pytest.approx((1 + 1 / 4) * whole), "one more was given"
    play(replace(setup, seed=1), store)
    assert _spent(store, "c0") == pytest.approx((1 + 2 / 4) * whole), "another run pays answer by answer"


def test_runs_with_other_settings_have_sums_of_their_own(problem, store):
    runner = LossyRunner(4)
    for noise in (2.0, 3.0, 4.0, 5.0):
        training = replace(problem.training, privacy=privacy(noise=noise))
        play(replace(problem, training=training), store, runner=runner)
    sessions = {options["session"].name for task, _, options in runner.calls if task.name == "mask_gradients"}
    assert len(sessions) == 4
    assert {options["session"].attempt for _, _, options in runner.calls if "session" in options} == {0}


@dataclass(frozen=True)
class Server(PlainRunner):
    """A server that asks for more: it keeps what each step was called with."""

    calls: dict = field(default_factory=dict)

    def map_cohorts(self, task, calls):
        self.calls[task.name] = calls
        return super().map_cohorts(task, calls)


@pytest.fixture
def curious(problem, store):
    """A server after an honest round, with what it could call again."""
    server = Server(4)
    play(problem, store, runner=server)
    return server


def _call(server, step, client="c0", **changed):
    """Call a step again for one client, with other arguments."""
    (call,) = [call for call in server.calls[step.name] if client in call[0][0].clients]
    args, options = call
    model = changed.pop("model", None)
    return step.fn(*((args[0], model) if model is not None else args), **{**options, **changed})


def test_a_second_question_in_a_session_is_refused(curious):
    (args, _), *_ = curious.calls["mask_gradients"]
    other = replace(args[1], shared={name: w + 1 for name, w in args[1].shared.items()})
    with pytest.raises(RefusalError, match="second question or list of silos"):
        _call(curious, mask_gradients, model=other)


def test_too_short_a_list_of_silos_is_not_confirmed(curious):
    options = curious.calls["confirm_answered"][0][1]
    assert options["session"].least == 4
    with pytest.raises(RefusalError, match="expected 4 or more"):
        _call(curious, confirm_answered, answered=options["answered"][:3])


def test_a_second_list_that_is_long_enough_is_neither_confirmed_nor_revealed(make_problem, store):
    setup = make_problem({**CLIENTS, "c4": 22}, network=MLP(5, (), 3), epochs=1, privacy=privacy(least=4, colluders=0))
    server = Server(5)
    play(setup, store, runner=server)
    fewer = tuple(client for client in server.calls["reveal_shares"][0][1]["answered"] if client != "c4")
    with pytest.raises(RefusalError, match="second question or list of silos"):
        _call(server, confirm_answered, answered=fewer)
    with pytest.raises(RefusalError, match="has not confirmed"):
        _call(server, reveal_shares, answered=fewer)


def test_nothing_is_confirmed_for_a_sum_that_the_silo_did_not_mask(curious):
    session = replace(curious.calls["seal_shares"][0][1]["session"], name="another")
    with pytest.raises(RefusalError, match="that this silo masked nothing for"):
        _call(curious, confirm_answered, session=session)


def test_codes_of_another_silo_are_refused(curious):
    (call,) = [call for call in curious.calls["reveal_shares"] if "c0" in call[0][0].clients]
    codes = call[1]["codes"]["c0"].clone()
    codes[[0, 1]] = codes[[1, 0]]
    with pytest.raises(RefusalError, match="got 2 right confirmations among 4"):
        _call(curious, reveal_shares, codes={"c0": codes})


def test_no_refusal_depends_on_rows(problem, store, monkeypatch):
    """A server that asks for noise near 0 could otherwise measure a sum by what is refused as too large."""
    tiny = replace(problem.training, privacy=replace(privacy(noise=1e-13)))
    read = []
    monkeypatch.setattr("tasks.privacy.secure_sums.clipped_sums", lambda *_: read.append("rows"))
    with pytest.raises(UserError, match=r"noise so small that a sum of .* rows has no exact integer"):
        play(replace(problem, training=tiny), store)
    owners_file(store, "budget: 8.0 ", "budget: 0.1 ")
    with pytest.raises(RefusalError, match="got a query that costs epsilon"):
        play(problem, store)
    assert read == []
    assert bound(store) == [], "nothing was bound either"


def test_an_owner_may_list_the_keys_of_other_silos(problem, store):
    make_store(Path(store.folder).parent)
    clients = problem.silos.clients
    keys = {client: SumLedger(str(Path(store.folder).parent), client).public_key() for client in clients}
    owners_file(store, "peers: all ", f"peers: {[keys[client] for client in clients if client != 'c2']} ")
    with pytest.raises(RefusalError, match=r"got client c2 with the key .* lists under peers in"):
        play(problem, store)
    owners_file(store, "peers: [", f"peers: ['{keys['c2']}', ")
    play(problem, store)


@pytest.mark.parametrize("lines", [0, 1, -1])
def test_a_record_of_sums_that_was_emptied_or_cut_is_missed(lines, problem, store):
    """Once, an emptied record let a silo confirm a second list of silos for the same sum."""
    play(problem, store)
    for log in Path(store.folder).parent.glob(".ledgers/*/ledger.log"):
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(UserError, match=r"ledger.log, the record of what client .* reported, is damaged, lacks lines"):
        play(problem, store)


def test_keys_are_remembered_once_shares_show_that_they_are_right(problem, store):
    runner = LossyRunner(4, lost={"seal_shares": {"c3"}})
    with pytest.raises(ClientsAwayError):
        play(problem, store, runner=runner)
    assert not list(Path(store.folder).parent.glob(".ledgers/*/peers.json"))
    play(problem, store)
    assert len(list(Path(store.folder).parent.glob(".ledgers/*/peers.json"))) == 4


def test_a_silo_that_always_refuses_ends_a_run(problem, store, monkeypatch):
    """Each repetition costs the others an answer; after two of them the refusal ends the run."""
    bind = SumLedger._bind

    def refuse(ledger, name, value):
        if ledger.client == "c0":
            raise RefusalError(f"client c0: {SECOND}")
        bind(ledger, name, value)

    monkeypatch.setattr(SumLedger, "_bind", refuse)
    runner = LossyRunner(4)
    with pytest.raises(RefusalError, match="client c0: got a second question"):
        play(problem, store, runner=runner)
    assert {options["session"].attempt for _, _, options in runner.calls if "session" in options} == {0, 1, 2}
    assert _spent(store, "c1") <= cost_of_run(problem.training.privacy, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: replace(m, questions=dict.fromkeys(m.clients, "0" * 64)), "answers to 2 questions"),
        (lambda m: replace(m, questions={}), "masked numbers of 0 clients, expected"),
        (lambda m: replace(m, numbers=m.numbers[:1]), "got 1 masked numbers"),
    ],
)
def test_silos_with_other_settings_or_other_numbers_are_named_before_anything_is_revealed(change, said, problem, store):
    @dataclass(frozen=True)
    class Changed(PlainRunner):
        def map_cohorts(self, task, calls):
            assert task.name not in ("confirm_answered", "reveal_shares")
            answers = super().map_cohorts(task, calls)
            if task.name == "mask_gradients":
                answers[0] = [change(message) for message in answers[0]]
            return answers

    with pytest.raises(UserError, match=said):
        play(problem, store, runner=Changed(4))


def test_the_batch_size_is_no_part_of_a_sum(problem, store):
    first, before = play(problem, store), _ledgers(store)
    again = play(replace(problem, training=replace(problem.training, batch=7)), store)
    assert torch.equal(flat(first[0]), flat(again[0]))
    assert _ledgers(store) == before


@pytest.mark.parametrize(("least", "colluders"), [(0, 1), (2, 0), (0, 2)])
def test_a_round_with_too_few_silos_for_a_sum_trains_nothing(least, colluders, problem, store):
    few = replace(
        problem,
        silos=problem.silos.select(["c0"]),
        training=replace(problem.training, privacy=privacy(least, colluders)),
    )
    (found,) = play(few, store)
    assert torch.equal(flat(found), flat(FedAvg().init(few).tensors["weights"]))
    assert not list(Path(store.folder).parent.glob(".ledgers/*/*.log"))


def test_another_key_of_a_silo_that_is_known_is_refused(curious):
    _, options = curious.calls["seal_shares"][0]
    session = options["session"]
    keys = list(session.keys)
    keys[session.clients.index("c2")] = session.key_of("c1")
    with pytest.raises(UserError, match="two silos with one name or one key"):
        _call(curious, seal_shares, session=replace(session, keys=tuple(keys), name="another"))
    keys[session.clients.index("c2")] = "0" * 63 + "9"
    with pytest.raises(RefusalError, match="got another key of client c2 than in its first sum"):
        _call(curious, seal_shares, session=replace(session, keys=tuple(keys), name="another"))


def test_an_owner_may_assume_more_colluders_than_params(problem, store):
    owners_file(store, "colluders: 1 ", "colluders: 2 ")
    with pytest.raises(RefusalError, match="colluders: got 1, expected 2 or more, as the owner has set in"):
        play(problem, store)
    more = replace(problem, training=replace(problem.training, privacy=privacy(colluders=2)))
    play(more, store)


def test_beyond_the_budget_nothing_leaves(problem, store):
    owners_file(store, "budget: 8.0 ", "budget: 0.1 ")
    with pytest.raises(RefusalError, match="got a query that costs epsilon"):
        play(problem, store)


def test_fine_tuning_and_fedprox_ask_what_fedavg_asks(problem, store):
    play(problem, store, (1, 2))
    before = _ledgers(store)
    for page in (FineTune(), FedProx(proximal=0.1)):
        play(problem, store, (1, 2), page=page)
        assert _ledgers(store) == before
    play(problem, store, (1,), page=FedOpt(server="sgd", rate=1.0))
    assert _ledgers(store) == before


def test_local_only_trains_as_without_sums(problem, store):
    page = LocalOnly()
    setup = replace(problem, stack=1)
    make_store(Path(store.folder).parent)
    context = RoundContext(1, setup, setup.silos.clients, (), PlainRunner(4), store)
    play_method_round(page, page.init(setup), context)
    assert bound(store) == []


def test_a_method_that_sends_more_than_sums_is_refused(problem, store):
    context = RoundContext(1, problem, problem.silos.clients, (), PlainRunner(4), store)
    model = FedAvg().model(FedAvg().init(problem), problem)
    with pytest.raises(MethodError, match="secure_sums: got true, expected false, since local_train of this method"):
        context.train(local_train, model, each=True)


def test_what_travels_is_counted_by_its_size(curious):
    (message,) = _call(curious, mask_gradients)
    assert isinstance(message, MaskedGradients)
    assert message.bytes_up == 8 * message.numbers.numel()
    (sealed,) = _call(curious, seal_shares)
    assert sealed.bytes_up == 32 + 4 * 148


def test_two_silos_need_all_of_each_others_noise(make_problem, store):
    setup = make_problem({"c0": 24, "c1": 31}, network=MLP(5, (), 3), epochs=1, privacy=privacy())
    start, (found,) = FedAvg().init(setup).tensors["weights"], play(setup, store)
    assert not torch.equal(flat(found), flat(start))
    more = replace(setup, training=replace(setup.training, privacy=privacy(colluders=2)))
    assert torch.equal(flat(play(more, store)[0]), flat(start)), "with two colluders of two there is no sum"


def test_rows_of_another_version_are_never_sent_under_the_same_masks(problem, store, monkeypatch):
    """An honest run after a new partition has sums of its own; a server that repeats the old one is refused."""
    server = Server(4)
    play(problem, store, runner=server)
    monkeypatch.setattr(Silos, "partition", "another")
    (call,) = [call for call in server.calls["mask_gradients"] if "c0" in call[0][0].clients]
    with pytest.raises(RefusalError, match="second question or list of silos"):
        mask_gradients.fn(*call[0], **call[1])
    again = LossyRunner(4)
    play(problem, store, runner=again)
    assert {options["session"].attempt for _, _, options in again.calls if "session" in options} == {0}


@pytest.mark.parametrize("objective", [Focal(1.0, (0.5, 0.5)), SquaredError()])
@pytest.mark.parametrize("secure", [True, False])
def test_what_some_labels_would_raise_is_raised_whatever_the_labels_are(objective, secure, problem, store):
    """Otherwise a server would learn for nothing whether a silo has a label."""
    setting = privacy() if secure else replace(privacy(), secure=None)
    training = replace(problem.training, objective=objective, privacy=setting)
    with pytest.raises(UserError, match="does not fit the classification of 3 classes"):
        play(replace(problem, training=training), store)
    assert not list(Path(store.folder).parent.glob(".ledgers/*/*.log"))


def test_a_network_with_fewer_outputs_than_classes_is_refused_whatever_the_labels_are(problem, store):
    with pytest.raises(UserError, match="does not fit the classification of 3 classes"):
        play(replace(problem, network=MLP(5, (6,), 2)), store)


def test_another_layout_of_a_recorded_sum_is_refused_before_rows_are_read(problem, store, monkeypatch):
    """Its last bits could differ, so that the record would tell something of rows by what it refuses."""
    server, read = Server(4), []
    play(problem, store, runner=server)
    (call,) = [call for call in server.calls["mask_gradients"] if "c0" in call[0][0].clients]
    (stack,) = call[0][0].stacks
    wider = replace(call[0][0], stacks=(replace(stack, size=stack.size + 1),))
    monkeypatch.setattr("tasks.privacy.secure_sums.clipped_sums", lambda *_: read.append("rows"))
    with pytest.raises(RefusalError, match="second question or list of silos"):
        mask_gradients.fn(wider, *call[0][1:], **call[1])
    assert read == []

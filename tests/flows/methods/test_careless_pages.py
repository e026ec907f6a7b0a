"""Pages with a slip in them: told in a sentence, where it would else be a wrong number or a row that leaves its client."""

from dataclasses import dataclass, replace
from typing import Annotated

import pytest
import torch
from torch import Tensor

from flows.methods.fedavg import FedAvg
from flows.methods.figure_context import FigureContext
from flows.methods.local_only import LocalOnly
from flows.training.run_records.draw_figures import draw_figures
from models.client_model import Model
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.network_factory import Network, is_bundled
from models.networks.wrapper import NetworkWrapper
from models.prng import server_stream
from models.server_state import ClientStateRefs
from models.training.engine import Training, train
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.aggregate import aggregate
from tasks.execution.load_client_data import load_stacks
from tasks.execution.steps import step
from tasks.local_train import local_train
from tasks.messages.message_policy import FEW, Message, Numbers
from tasks.messages.round_messages import Update

SIZES = {"lyon": 40, "oslo": 30, "rome": 23, "bonn": 9}


@dataclass(frozen=True)
class Quiet(Message):
    """Says neither what it has nor that it travels."""

    travels = False
    x: Tensor


@dataclass(frozen=True)
class Wordy(Message):
    x: Annotated[str, FEW]


@pytest.mark.parametrize("answers", [list[Quiet | Message], tuple[list[Quiet], int]])
def test_a_message_that_says_too_little_is_refused_wherever_a_step_names_it(answers):
    def tell(cohort: Cohort) -> None: ...

    tell.__annotations__["return"] = answers
    with pytest.raises(TypeError, match=r"Quiet\.x: got no numbers in the annotation, expected Annotated\[\.\.\."):
        step(tell)


@dataclass(frozen=True)
class Told(Message):
    x: Annotated[Tensor, FEW]


@pytest.mark.parametrize("summed", [False, True])
def test_numbers_that_grow_with_a_clients_rows_are_not_few(summed, make_problem, make_round):
    """One for each row, padded to the most of the stack."""

    @step
    def tell(cohort: Cohort, model: Model, private: ClientStore, device: str) -> list[Told]:
        opened = load_stacks(cohort, model, private, "train", device)
        each = [(s.clients, rows.y[: len(s.clients)].float()) for s, rows, *_ in opened]
        return [Told(clients, y.sum(1) if summed else y) for clients, y in each]

    setup = make_problem(SIZES)
    round, model = make_round(setup, stack=2), FedAvg().model(FedAvg().init(setup), setup)
    if summed:
        assert len(round.map_clients(tell, model)) == 2
    else:
        with pytest.raises(
            TypeError, match=r"Told\.x: got 40 numbers for some clients and 23 for others, expected equally many for"
        ):
            round.map_clients(tell, model)


def test_a_size_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="one of few, several, learned"):
        Numbers("Several", 1)  # type: ignore[arg-type]


def test_a_class_that_adds_to_a_message_without_a_decorator_is_refused():
    class Thawed(Message):
        x: Annotated[Tensor, FEW]

    def tell(cohort: Cohort) -> list[Thawed]: ...

    tell.__annotations__["return"] = list[Thawed]
    with pytest.raises(TypeError, match="frozen dataclass"):
        step(tell)


ANSWERS = {
    "nothing": (lambda _: [], "tell: got nothing from a client step, expected messages"),
    "rows, unannounced": (
        lambda cohort: [Quiet(s.clients, torch.ones(9)) for s in cohort.stacks],
        "got no numbers in the annotation",
    ),
    "text": (lambda cohort: [Wordy(s.clients, "north") for s in cohort.stacks], "message: got a str, expected"),
    "no message at the end": (lambda cohort: [Message(cohort.clients), 3], "tell: got int from a client step"),
    "others": (lambda _: [Message(("paris",))], "'paris', expected one of a sampled client"),
}


@pytest.mark.parametrize("which", ANSWERS)
def test_an_answer_that_is_no_list_of_messages_of_these_clients_is_refused(which, make_problem, make_round):
    answer, message = ANSWERS[which]

    @step
    def tell(cohort: Cohort, model: Model, private: ClientStore, device: str) -> list:
        return answer(cohort)

    setup = make_problem(SIZES)
    with pytest.raises(TypeError, match=message):
        make_round(setup).map_clients(tell, FedAvg().model(FedAvg().init(setup), setup))


@pytest.mark.parametrize("change", [lambda updates: updates[:1], lambda updates: updates * 2])
def test_training_that_leaves_a_client_out_or_tells_it_twice_is_refused(change, make_problem, make_round):
    @step
    def some(cohort: Cohort, model: Model, training: Training, private: ClientStore, seed: int, round: int,
             device: str) -> list[Update]:  # fmt: skip
        return change(local_train.fn(cohort, model, training, private, seed, round, device))

    setup = make_problem(SIZES)
    with pytest.raises(TypeError, match="results for client bonn, expected one from a task that trains"):
        make_round(setup, stack=2).train(some, FedAvg().model(FedAvg().init(setup), setup))


def test_an_update_whose_numbers_are_not_of_its_clients_is_refused():
    with pytest.raises(ValueError, match="one number for each of 2 clients"):
        Update(("a", "b"), torch.tensor([3]), {}, torch.zeros(2))
    update = Update(("a",), torch.tensor([3]), {"w": torch.ones(1)}, torch.zeros(1))
    with pytest.raises(ValueError, match="aggregate: w: got the shape of another model, expected the server's"):
        aggregate.fn([update], {"w": torch.zeros(4)})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, None])
def test_a_share_that_no_mean_can_be_weighed_by_is_refused(bad, make_problem, make_round):
    setup = make_problem(SIZES)
    shares = dict.fromkeys(SIZES, 1.0) | ({"rome": bad} if bad is not None else {})
    if bad is None:
        del shares["rome"]
    with pytest.raises(ValueError, match="for client rome, expected numbers of at least 0"):
        make_round(setup).train(local_train, FedAvg().model(FedAvg().init(setup), setup), shares=shares)


def test_what_clients_keep_is_not_written_over_by_another_section_of_that_name(make_problem, make_round):
    """With momentum its names are those of the weights: the velocities were what the client answered with."""
    setup = make_problem(SIZES)
    with pytest.raises(ValueError, match="private section 'weights': got two tensors, expected one"):
        make_round(setup).train(
            local_train, LocalOnly().model(LocalOnly().init(setup), setup), optimiser=ClientStateRefs("weights", {})
        )


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["dense0.wieght"], "expected names of weights"),
        ("dense", "expected names of weights"),
        ([], "of which one is trained at least"),
    ],
)
def test_training_only_weights_that_there_are_not_is_refused(only, message, make_problem, make_round):
    @step
    def part(cohort: Cohort, model: Model, training: Training, private: ClientStore, seed: int, round: int,
             device: str) -> list[Update]:  # fmt: skip
        for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
            train(model.network, weights, context, rows, training, torch.zeros(stack.size).long(), only=only)
        return []

    setup = make_problem(SIZES)
    with pytest.raises(ValueError, match=message):
        make_round(setup).train(part, FedAvg().model(FedAvg().init(setup), setup))


def test_a_network_around_an_ensemble_has_the_loss_of_the_ensemble(make_problem, make_round):
    """A mean over members, and not their sum."""
    setup = make_problem(SIZES)
    network = DeepEnsemble(setup.network, 3)
    setup = replace(setup, network=network)
    model = Model(network, network.init(server_stream(0, 0, "init")), clients=setup.silos.clients)
    (plain,) = make_round(setup, stack=4).train(local_train, model)
    (around,) = make_round(setup, stack=4).train(local_train, replace(model, network=NetworkWrapper(network)))
    assert torch.allclose(around.loss, plain.loss, rtol=1e-4)


def test_a_network_of_a_page_that_is_no_record_is_not_logged():
    class Own(Network):
        dropout, max_width = 0.0, 4

        def init(self, stream): ...

        def apply(self, weights, context, x, stream): ...

    assert not is_bundled(Own())


def drawing(name: str):
    """A picture of this name."""

    def draw(scene: FigureContext):
        (scene.folder / name).write_text("drawn")
        return scene.folder / name

    return draw


@pytest.fixture
def scene(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "params.yaml").touch()
    return FigureContext(tmp_path / "run", *[None] * 7)  # type: ignore[arg-type]


def test_a_picture_is_a_file_in_the_runs_folder(tmp_path, scene):
    assert draw_figures([drawing("there.png"), lambda _: None], scene) == (scene.folder / "there.png",)
    assert [path.name for path in scene.folder.iterdir()] == ["there.png"]
    for path in (lambda s: s.folder / "no.png", lambda s: s.folder, lambda _: tmp_path / "params.yaml"):
        with pytest.raises(ValueError, match="expected a file in the folder of its scene"):
            draw_figures([path], scene)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "best-000001.safetensors", "result.json", ".lock"])
def test_a_picture_does_not_take_the_place_of_a_file_of_the_runs_own(name, scene):
    (scene.folder / name).write_text("the run's")
    with pytest.raises(ValueError, match=f"figure: got the name {name}, which is a file of the run itself"):
        draw_figures([drawing(name)], scene)
    assert (scene.folder / name).read_text() == "the run's"

"""What travels between a coordinator and a place arrives as the step's signature says, and nothing else arrives."""

import functools
import json
import struct
import typing
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from models.client_model import GroupedWeights, Model
from models.metrics.client_metrics import ClientMetric
from models.networks.exported_network import ExportedNetwork
from models.networks.mlp import MLP
from models.networks.network import Network
from models.networks.torch_module import TorchModule
from models.server_state import ClientStateRefs
from models.training.engine import Training
from models.training.objectives import CrossEntropy, Focal, Objective
from models.training.optimizers import SGD, Adam, Optimizer
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import DivergedError, RefusalError, UserError
from tasks.messages.message_policy import Message
from tasks.messages.round_messages import ClusterChoice, Update
from tasks.remote.answer_steps import answer, pack_call, read_answer, run_step
from tasks.remote.codec import MOST_DEPTH, NotPlainError, alternatives, arms_of, field_hints, pack, unpack
from tasks.remote.step_list import client_steps, offered_functions, parameters_of, returned_by
from tasks.report_evidence import prior_shift_fit, report_cluster_fit

LEAVES = {int, str, bool, float, type(None), Tensor, np.ndarray, Cohort, Silos, ClientStore, ClientMetric}
CLIENTS = {"oslo": 11, "lyon": 7, "rome": 9}


def undecodable(hint, seen):
    """Yield the parts of a type that no decoder makes."""
    for arm in arms_of(hint):
        origin = typing.get_origin(arm)
        if origin is typing.Literal or arm in LEAVES or origin is np.ndarray or str(arm) in seen:
            continue
        seen.add(str(arm))
        if isinstance(arm, type) and not origin and alternatives(arm):
            for kind in alternatives(arm).values():
                if not issubclass(kind, TorchModule):  # a plugin's, which is refused where it is sent
                    for inner in field_hints(kind).values() if not issubclass(kind, ClientMetric) else ():
                        yield from undecodable(inner, seen)
        elif getattr(origin, "__name__", "") == "Callable":
            continue  # by name, of `offered_functions`
        elif origin is not None:
            for inner in typing.get_args(arm):
                if inner is not Ellipsis:
                    yield from undecodable(inner, seen)
        else:
            yield arm


@pytest.mark.parametrize("step", sorted(client_steps()))
def test_the_codec_knows_all_types_of_a_step(step):
    for name, hint in {**parameters_of(step), "return": returned_by(step)}.items():
        assert [*undecodable(hint, set())] == [], name


def test_a_type_that_the_codec_does_not_know_is_found():
    @dataclass(frozen=True)
    class Strange:
        value: int

    assert [*undecodable(dict[str, list[Strange | complex]], set())] == [Strange, complex]
    assert alternatives(object) == {}


VALUES = [
    (None, int | None),
    (0.1, float),
    (7, float),
    (float("-inf"), float),
    ("ø", str),
    (["a", "b"], typing.Sequence[str]),
    (("a", 1), tuple[str, int]),
    ({"a": (1.0, float("nan"))}, typing.Mapping[str, tuple[float, float]]),
    (frozenset({"a"}), frozenset[str]),
    (ClientStateRefs("weights", {"oslo": "ab/0"}), ClientStateRefs),
    (SGD(0.1), Optimizer),
    (Adam(0.01, decoupled=True), Optimizer),
    (Focal(2.0), Objective),
    (Training(CrossEntropy(), SGD(0.1), 2, 4), Training),
    (MLP(5, (6,), 3), Network),
]


@pytest.mark.parametrize(("value", "hint"), VALUES)
def test_a_value_arrives_as_it_was_sent(value, hint):
    found = unpack(pack(value), hint)
    assert repr(found) == repr(value)
    assert type(found) is type(value)


def test_tensors_arrive_with_type_and_shape_also_when_they_share_memory():
    whole = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    sent = {
        "part": whole[:, 1:],
        "turned": whole.T,
        "empty": torch.zeros(0, 2, dtype=torch.int16),
        "one": torch.tensor(1),
    }
    found = unpack(pack(sent), typing.Mapping[str, Tensor])
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {n: (t.dtype, t.shape) for n, t in sent.items()}
    assert all(torch.equal(found[name], sent[name]) for name in sent)
    found["part"][0, 0] = 9
    assert whole[0, 1] == 1
    array = np.array([[1.5, np.nan]], np.float32)[:, ::-1]
    assert np.array_equal(unpack(pack(array), np.ndarray), array, equal_nan=True)


def test_a_model_arrives_with_its_groups():
    grouped = GroupedWeights({"w": torch.ones(2, 3)}, (0, 1, 1))
    found = unpack(pack(Model(MLP(5, (), 3), {}, grouped, clients=("a", "b", "c"))), Model)
    assert isinstance(found.personal, GroupedWeights)
    assert found.personal.group_of == (0, 1, 1)
    assert found.bytes_down == 12


def forged(tree, tensors=None):
    return save(tensors or {}, {"tree": json.dumps(tree)})


WRONG = {
    "text for a number": ({"map": [["seed", "1"]]}, "seed: got '1', expected int"),
    "true for a number": ({"map": [["seed", True]]}, "seed: got True"),
    "another class": (
        {"map": [["training", {"record": "Popen", "fields": {"args": ["touch", "x"]}}]]},
        "expected Training",
    ),
    "a class of another type": ({"map": [["training", {"record": "MLP", "fields": {}}]]}, "expected Training"),
    "a parameter of no step": ({"map": [["__class__", 1]]}, "arguments: got __class__"),
    "a path": ({"map": [["private", {"store": ["..", "etc"]}]]}, "expected plain names of folders"),
    "an absolute path": ({"map": [["private", {"store": ["/etc"]}]]}, "expected plain names of folders"),
    "a deep path, above which no owner's file is found": ({"map": [["private", {"store": ["a"] * 3}]]}, "private: got"),
    "a store made of its fields": (
        {"map": [["private", {"record": "ClientStore", "fields": {"folder": "/etc"}}]]},
        "expected ClientStore",
    ),
    "a cohort made of its fields": ({"map": [["cohort", {"record": "Cohort", "fields": {}}]]}, "expected Cohort"),
    "a missing tensor": ({"map": [["model", {"tensor": "7"}]]}, "expected Model"),
    "a literal of another": ({"map": [["anchor", {"map": [["w", 1]]}]]}, "anchor"),
    "no mapping": ({"list": []}, "arguments: got"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_place_refuses_what_the_signature_does_not_say(case, write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    tree, sentence = WRONG[case]
    with pytest.raises(NotPlainError, match="place a: ") as error:
        read_answer(answer(lambda: run_step("local_train", forged(tree), apart.places["a"])), list[Update], "a")
    assert sentence in str(error.value)


def test_a_place_refuses_deep_values_unknown_kinds_and_bytes_of_others(write_silos, separate):
    deep = "a"
    for _ in range(MOST_DEPTH + 2):
        deep = {"list": [deep]}
    nested = str
    for _ in range(MOST_DEPTH + 2):
        nested = list[nested]
    with pytest.raises(NotPlainError, match="nested more than"):
        unpack(forged(deep), nested)
    for content in (
        b"",
        b"\x80\x04pickle",
        struct.pack("<Q", 2**60) + b"{}",
        save({}, {"tree": "[" * 100_000}),
        save({}),
    ):
        with pytest.raises(NotPlainError, match="cannot be read"):
            unpack(content, int)
    with pytest.raises(NotPlainError):
        unpack(forged({"eval": "1"}), int)
    with pytest.raises(NotPlainError, match="reference to rows"):
        unpack(forged({"store": []}), ClientStore)


def test_a_place_opens_its_own_silos_only(write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    here = Cohort(apart.listed.select(["oslo"]), (Stack(("oslo",), 1),))
    content = pack(here)
    assert unpack(content, Cohort, apart.places["a"]).clients == ("oslo",)
    with pytest.raises(NotPlainError, match="another part of the data than this place holds"):
        unpack(content, Cohort, apart.places["b"])
    tree = json.loads(json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])["__metadata__"]["tree"])
    for change in (
        {"clients": ["rome"]},
        {"stacks": [[["rome"], 1]]},
        {"stacks": [[["oslo"], 10**9]]},
    ):
        with pytest.raises(UserError):
            unpack(forged({"cohort": {**tree["cohort"], **change}}), Cohort, apart.places["a"])


def test_pooled_silos_do_not_travel_because_owners_speak_of_single_ones(write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    pooled = apart.listed.select(["oslo", "lyon"]).pool()
    with pytest.raises(NotPlainError, match="got pooled silos"):
        pack(Cohort(pooled, (Stack(pooled.clients, 1),)))


def test_functions_travel_by_name_from_the_list_alone(write_silos, separate):
    place = separate(write_silos(CLIENTS), [["oslo"], ["lyon", "rome"]]).places["a"]
    hint = parameters_of("regroup")["evidence"]
    assert unpack(pack(report_cluster_fit, offered_functions()), hint, place) is report_cluster_fit
    partial = unpack(pack(functools.partial(prior_shift_fit, places=[1, 2]), offered_functions()), hint, place)
    assert (partial.func, partial.keywords) == (prior_shift_fit, {"places": [1, 2]})
    for tree in ({"function": "system"}, {"function": "prior_shift_fit", "with": {"map": [["device", "x"]]}}):
        with pytest.raises(NotPlainError):
            unpack(forged(tree), hint, place)
    with pytest.raises(NotPlainError, match="What a plugin defines does not travel"):
        pack(lambda query: query, offered_functions())


def test_an_unknown_step_and_errors_of_steps_arrive_typed(write_silos, separate):
    place = separate(write_silos(CLIENTS), [["oslo"], ["lyon", "rome"]]).places["a"]
    with pytest.raises(RefusalError, match="place a: system: got no step of this place's list"):
        read_answer(answer(lambda: run_step("system", b"", place)), list[Update], "a")
    for kind in (RefusalError, DivergedError, UserError):
        with pytest.raises(kind, match="place a: because"):
            read_answer(answer(functools.partial(_raise, kind("because"))), list[Update], "a")
    for error, kind in ((OSError("Jane"), RuntimeError), (ValueError("Jane"), ValueError)):
        sent = answer(functools.partial(_raise, error))
        assert b"Jane" not in sent, "it may be a value of a row"
        with pytest.raises(kind, match=f"place a: {type(error).__name__}; the place's own screen says where"):
            read_answer(sent, list[Update], "a")


def test_a_message_of_another_type_than_the_steps_is_refused_by_the_coordinator():
    sent = answer(lambda: [ClusterChoice(("a",), torch.ones(1), torch.ones(1, 1), torch.ones(1, 1))])
    assert read_answer(sent, list[Message], "a")[0].clients == ("a",)
    with pytest.raises(NotPlainError):
        read_answer(sent, list[Update], "a")


def test_a_call_arrives_whole(write_silos, separate):
    apart = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]])
    cohort = Cohort(apart.listed.select(["oslo", "lyon"]), (Stack(("oslo", "lyon"), 2),))
    training = Training(CrossEntropy(), SGD(0.1), 1, 4)
    network = MLP(5, (), 3)
    model = Model(network, {"w": torch.ones(2)}, clients=cohort.clients)
    content = pack_call(
        "evaluate", (cohort, model, training, ClientStore("/x/private/store/run")), {"splits": ("test",)}
    )
    assert b"/x/" not in content
    assert all(client.encode() not in content for client in ("rome",))


def _raise(error):
    raise error


def test_a_network_that_runs_code_from_its_own_fields_does_not_arrive():
    """torch unpickles an exported program when it is first applied: any code would run."""
    for name, content in (
        ("ExportedNetwork", {"program": "cHJvZ3JhbQ==", "names": {"tuple": []}}),
        ("TorchModule", {}),
    ):
        with pytest.raises(NotPlainError, match=f"got .*{name}.*, expected Network"):
            unpack(forged({"record": name, "fields": content}), Network)
    with pytest.raises(NotPlainError, match="expected Network"):
        unpack(pack(ExportedNetwork("cHJvZ3JhbQ==", ())), Network)

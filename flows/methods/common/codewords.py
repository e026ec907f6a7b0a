"""What pages with codewords make of a network, ask clients, count and say."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from flows.methods.common.network_checks import offering
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.deep_ensemble import each_made
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import COUNT, SHARED, QuantizedNetwork, most_segments
from models.prng import server_stream
from silos.errors import UserError
from tasks.codebooks import common_codes, report_centroids
from tasks.messages.codebook_messages import UncertaintyScores
from tasks.uncertainty_check import uncertainty_check

_COLLAPSED = 3.0  # a perplexity below which hardly anything of a feature is left


Held = Mapping[str, int]
"""How many words of its own each client has in each member, by its name behind the member's prefix; 0 may be left out."""


def counted(network: Network, clients: Sequence[str], held: Held) -> dict[str, Tensor]:
    """`held` as the context of a model: every member's counts, (clients,) int64."""
    return {
        one.prefix + COUNT: torch.tensor([held.get(one.prefix + c, 0) for c in clients])
        for one in network.single_networks
    }


def local_codes(network: Network, clients: Sequence[str], held: Held) -> dict[str, float]:
    """How many words of its own each client has, if any; in an ensemble the mean over members."""
    counts = counted(network, clients, held).values()
    mean = torch.stack(list(counts)).double().mean(0).tolist()
    return {client: count for client, count in zip(clients, mean, strict=True) if count}


def common_codebooks(round: RoundContext, models: Sequence[Model], words: int) -> list[dict[str, Tensor]]:
    """For the clients of each model shared words anew, of every member by name: k-means over the centres that they tell.

    Where fewer centres than words differ somewhere, all books have as few: their networks are of one shape. They have none
    where all clients of a model have too few rows to tell any.
    """
    setup = round.setup
    options: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": round.number}
    stream = server_stream(setup.seed, round.number, "common_words")
    answers = [
        round.map_clients(report_centroids, m, round.silos.select(m.clients), words=words, **options) for m in models
    ]

    def books(words: int) -> list[dict[str, Tensor]]:
        made: list[dict[str, Tensor]] = []
        for model, messages in zip(models, answers, strict=True):
            made.append({})
            for one in model.network.single_networks:
                mine = [message for message in messages if message.prefix == one.prefix]
                seed = int(one.stream(stream)) & 0x7FFFFFFF
                made[-1][one.prefix + SHARED] = round.run_on_server(common_codes, mine, words, seed)
        return made

    by_model = books(words)
    lengths = {len(book) for by_member in by_model for book in by_member.values()}
    return by_model if len(lengths) == 1 else books(min(lengths))


def with_codes(method: str, network: Network, segments: int | Literal["auto"], **options: Any) -> Network:
    """The network, or every member of an ensemble, with words in place of features; UserError naming the method's option."""

    def quantised(inner: Network) -> QuantizedNetwork:
        channels = offering(inner, inner.encoder_head, "features that words could stand for").encoded[0]
        return QuantizedNetwork(inner, segments=most_segments(channels) if segments == "auto" else segments, **options)

    try:
        made: Network = each_made(network, quantised)
    except ValueError as error:
        raise UserError(f"params.yaml: method.{method}.{error}.") from None
    return made


def with_classes(method: str, setup: TrainingSetup) -> TrainingSetup:
    """The problem; UserError for a regression, of whose predictions there is no entropy."""
    if setup.training.objective.task == "regression":
        raise UserError(
            f"params.yaml: the method {method} asks how unsure a client is of its classes, and predicted numbers have none; "
            "use a source with classes, or another method."
        )
    return setup


def doubts(round: RoundContext, model: Model, split: str, passes: int) -> dict[str, dict[str, float]]:
    """What uncertainty_check finds of the clients that take part, by name and client.

    UserError if one has no rows to be unsure of.
    """
    setup = round.setup
    options: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": round.number}
    messages: Sequence[UncertaintyScores] = round.map_clients(
        uncertainty_check, model, split=split, passes=passes, **options
    )
    for client, rows in ((c, n) for m in messages for c, n in zip(m.clients, m.rows.tolist(), strict=True)):
        if not rows:
            other = "" if split == "test" else ", or set method.uefl.check_on to train"
            raise UserError(
                f"client {client} has no {split} rows, from which its uncertainty is told; give data.split.{split} "
                f"a share{other}."
            )
    names = messages[0].numbers
    return {n: {c: float(v) for m in messages for c, v in zip(m.clients, m.numbers[n], strict=True)} for n in names}


def codebook_message(
    numbers: Mapping[str, Mapping[str, float]], limit: float, what: str, words: int
) -> tuple[str, ...]:
    """Why a stage ended as it did; and that a book of so many words has collapsed, if clients use next to none of it."""
    entropy = list(numbers["entropy"].values())
    range_ = f"entropies {min(entropy):.3f} to {max(entropy):.3f} nats, limit {limit:.3f}"
    why = {"certain": "no client is uncertain", "stages": "the last stage is over"}.get(what, what)
    use = sorted(numbers["perplexity"].values())[len(entropy) // 2]
    if use >= min(_COLLAPSED, words / 2):
        return (f"{range_}: {why}",)
    return f"{range_}: {why}", (
        f"the codebook has collapsed: the median client uses as much of it as {use:.1f} words used equally; "
        "uefl's start: centres with a warm_up, or its arm ours, prevents that"
    )

"""Builds, counts, checks and lends codewords: what methods with codebooks share.

Lending gives codewords to clients that never took part in UEFL's training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from flows.methods.common.network_checks import require_part
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.deep_ensemble import map_members, plain
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, QuantizedNetwork, most_segments
from models.prng import server_stream
from models.server_state import ClientStateRefs
from silos.cohort import Silos
from silos.errors import MethodError, UserError
from tasks.codebook_extend import borrow_words, codebook_extend
from tasks.codebooks import common_codes, report_centroids
from tasks.execution.task_runner import Broadcast
from tasks.messages.round_messages import UncertaintyScores
from tasks.uncertainty_check import uncertainty_check

_COLLAPSED = 3.0  # perplexity below which quantized features carry almost no information

CodewordCounts = Mapping[str, int]
"""Member's prefix + client to the number of the client's own codewords in that member; counts of 0 may be missing."""


def count_context(network: Network, clients: Sequence[str], counts: CodewordCounts) -> dict[str, Tensor]:
    """Return the counts as the context of a model: (clients,) int64 for each member."""
    return {
        member.prefix + COUNT: torch.tensor([counts.get(member.prefix + c, 0) for c in clients])
        for member in network.single_networks
    }


def local_codes(network: Network, clients: Sequence[str], counts: CodewordCounts) -> dict[str, float]:
    """Count the own codewords of each client that has any; in an ensemble the mean over members."""
    by_member = count_context(network, clients, counts).values()
    mean = torch.stack(list(by_member)).double().mean(0).tolist()
    return {client: count for client, count in zip(clients, mean, strict=True) if count}


def common_codebooks(round: RoundContext, models: Sequence[Model], num_codewords: int) -> list[dict[str, Tensor]]:
    """Compute new shared codebooks by k-means over the centroids that clients report.

    If some codebook has fewer different centroids than codewords, all codebooks are as short, so that networks have one
    shape. They are empty if all clients of a model have too few rows to report centroids.

    Args:
        models: One model for each codebook, with the clients that report.
        num_codewords: The codewords of each codebook.

    Returns:
        For each model the codebooks of the network's members, by tensor name: (codewords, length).
    """
    stream = server_stream(round.setup.seed, round.number, "common_words")
    options = {**round.training_arguments, "words": num_codewords}
    centroids = [round.map_clients(report_centroids, m, round.silos.select(m.clients), **options) for m in models]

    def cluster(num_codewords: int) -> list[dict[str, Tensor]]:
        codebooks: list[dict[str, Tensor]] = []
        for model, messages in zip(models, centroids, strict=True):
            codebooks.append({})
            for member in model.network.single_networks:
                of_member = [message for message in messages if message.prefix == member.prefix]
                seed = int(member.stream(stream)) & 0x7FFFFFFF
                codes = round.run_on_server(common_codes, of_member, num_codewords, seed)
                codebooks[-1][member.prefix + SHARED] = codes
        return codebooks

    codebooks = cluster(num_codewords)
    lengths = {len(codes) for by_member in codebooks for codes in by_member.values()}
    return codebooks if len(lengths) == 1 else cluster(min(lengths))


def quantize_network(method: str, network: Network, segments: int | Literal["auto"], **options: Any) -> Network:
    """Quantize the features of the network, or of each member of an ensemble.

    Args:
        method: The method, for error messages.
        network: The network of params.yaml.
        segments: The slices of the channels that have a code each, or the maximum number of slices.
        options: Further fields of `QuantizedNetwork`.

    Raises:
        UserError: If the network has no encoder, or an option does not fit it.
    """

    def quantize(inner: Network) -> QuantizedNetwork:
        channels = require_part(inner, inner.encoder_head, "features that codewords could replace").encoded[0]
        return QuantizedNetwork(inner, segments=most_segments(channels) if segments == "auto" else segments, **options)

    try:
        quantized: Network = map_members(network, quantize)
    except ValueError as error:
        raise UserError(f"params.yaml: method.{method}.{error}.") from None
    return quantized


def require_classes(method: str, setup: TrainingSetup) -> None:
    """Raise a UserError for a regression, whose predictions have no entropy."""
    if setup.training.objective.task == "regression":
        raise UserError(
            f"params.yaml: data.source: got numeric targets, expected classes, since {method} measures how "
            "uncertain a client is of its classes. Use a source with classes, or another method."
        )


def require_rows(silos: Silos, split: str) -> None:
    """Raise a MethodError if a client that trains has no rows in the split, on which its uncertainty is computed."""
    if silos.common(split):
        return
    for client, rows in silos.federated().rows(split).items():
        if not rows:
            other = "" if split == "test" else ", or set method.uefl.check_on to train"
            raise MethodError(
                f"data.split.{split}: got no {split} rows for client {client}, expected some, from which its "
                f"uncertainty is computed. Set a share{other}."
            )


def measure_uncertainty(round: RoundContext, model: Model, split: str, passes: int) -> dict[str, dict[str, float]]:
    """Run uncertainty_check on the clients that take part.

    Args:
        split: The split of the rows.
        passes: The stochastic forward passes that are averaged; 0 is one deterministic pass.

    Returns:
        Score to client to value; entropies are in nats.
    """
    messages: Sequence[UncertaintyScores] = round.map_clients(
        uncertainty_check, model, split=split, passes=passes, **round.training_arguments
    )
    names = messages[0].numbers
    return {n: {c: float(v) for m in messages for c, v in zip(m.clients, m.numbers[n], strict=True)} for n in names}


def codebook_message(
    scores: Mapping[str, Mapping[str, float]], limit: float, outcome: str, num_codewords: int
) -> tuple[str, ...]:
    """Return the messages about the end of a stage: its outcome, and a warning if the codebook has collapsed."""
    entropy = list(scores["entropy"].values())
    range_ = f"entropies {min(entropy):.3f} to {max(entropy):.3f} nats, limit {limit:.3f}"
    reason = {"certain": "no client is uncertain", "stages": "the last stage has ended"}.get(outcome, outcome)
    perplexity = sorted(scores["perplexity"].values())[len(entropy) // 2]
    if perplexity >= min(_COLLAPSED, num_codewords / 2):
        return (f"{range_}: {reason}",)
    return f"{range_}: {reason}", (
        f"the codebook has collapsed: the median client uses as much of it as {perplexity:.1f} equally used "
        "codewords. Set start: centres with a warm_up, or arm: ours, to prevent that"
    )


Unseen = Literal["shared", "own", "union", "nearest"]
"""The codewords that a client reads which never trained, besides the shared ones: none (`shared`); k-means centroids of its
training features, without training (`own`); all clients' codewords (`union`); or the codewords of the client whose
codewords are nearest to its training features (`nearest`).

`union` and `nearest` show a client's own codewords to another client, which training never does.
"""


def lend_codewords(
    unseen: Literal["union", "nearest"], model: Model, round: RoundContext, fresh: Sequence[str]
) -> Model:
    """Return the model in which fresh clients read other clients' codewords; unchanged if no client has any."""
    personal = model.personal
    assert isinstance(personal, ClientStateRefs)
    counts = _counts(model)
    sources = list(local_codes(model.network, model.clients, counts))
    if not sources:
        return model
    if unseen == "union":
        return _union(model, round, fresh, sources)
    refs = dict(personal.refs)
    for client in fresh:
        source = _nearest(model, round, client, sources)
        refs |= {client: personal.refs[source]} if source else {}
        counts |= _counts_as(model, client, source)
    return _with_codewords(model, refs, counts)


def _counts(model: Model) -> dict[str, int]:
    """Read the counts of codewords from the model's context, zeros included."""
    assert not isinstance(model.context, ClientStateRefs)
    counts: dict[str, int] = {}
    for member in model.network.single_networks:
        of_member = model.context.get(member.prefix + COUNT, torch.zeros(len(model.clients), dtype=torch.int64))
        counts |= {member.prefix + client: n for client, n in zip(model.clients, of_member.tolist(), strict=True)}
    return counts


def _counts_as(model: Model, client: str, source: str | None) -> dict[str, int]:
    """Return the counts of a client that reads the codewords of the source, or none."""
    counts, members = _counts(model), model.network.single_networks
    return {member.prefix + client: 0 if source is None else counts[member.prefix + source] for member in members}


def _with_codewords(model: Model, refs: dict[str, str], counts: CodewordCounts, room: int | None = None) -> Model:
    """Return the model with these stored codewords and counts, and with room for more codewords if given."""
    personal = model.personal
    assert isinstance(personal, ClientStateRefs)
    network, start = model.network, dict(personal.start)
    if room is not None:
        network = map_members(network, lambda inner: replace(inner, room=room))
        start |= {name: w.new_zeros(room, w.shape[1]) for name, w in start.items() if plain(name) == OWN}
    context = count_context(network, model.clients, counts)
    return replace(model, network=network, personal=replace(personal, refs=refs, start=start), context=context)


def _nearest(model: Model, round: RoundContext, client: str, sources: Sequence[str]) -> str | None:
    """Return the source with the codewords nearest to the client's training tokens; None if the shared ones are as near."""
    personal = model.personal
    assert isinstance(personal, ClientStateRefs)
    silos = round.setup.silos.select([client])
    options = {**round.training_arguments, "split": "train", "passes": 0}
    distance: dict[str | None, float] = {}
    for source in (None, *sources):
        refs = {} if source is None else {client: personal.refs[source]}
        counts = _counts(model) | _counts_as(model, client, source)
        candidate = _with_codewords(model, {**personal.refs, **refs}, counts)
        (message,) = round.map_clients(uncertainty_check, candidate, silos=silos, **options)
        distance[source] = float(message.numbers["code_loss"][0])
    return min(distance, key=lambda source: (distance[source] != distance[source], distance[source]))


def _union(model: Model, round: RoundContext, fresh: Sequence[str], sources: Sequence[str]) -> Model:
    """Store all clients' codewords with room for the union, and give the union to the fresh clients."""
    personal, counts, setup = model.personal, _counts(model), round.setup
    assert isinstance(personal, ClientStateRefs)
    members = model.network.single_networks
    union = max(sum(counts[member.prefix + source] for source in sources) for member in members)
    room = max(union, members[0].network.room)  # the stored room exceeds the count of a silo with few different tokens
    options = {**round.training_arguments, "extend": (), "words": 0, "room": room}
    stored = setup.silos.select([client for client in model.clients if client in personal.refs])
    padded = round.map_clients(codebook_extend, model, silos=stored, **options)
    refs = {client: ref for message in padded for client, ref in message.refs.items()}
    lent = ClientStateRefs(personal.section, {source: personal.refs[source] for source in sources}, personal.start)
    options = {"lent": Broadcast(lent), "words": Broadcast(counts), "room": room}
    for message in round.map_clients(borrow_words, model, silos=setup.silos.select(fresh), **options):
        refs |= message.refs
        counts |= message.held
    return _with_codewords(model, refs, counts, room)

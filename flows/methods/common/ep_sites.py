"""The posterior of a federation as a prior times a factor of each client, its site: what pages share of it."""

from collections.abc import Sequence
from typing import Literal

import torch

from flows.methods.base import RoundReport
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.gaussians import DEVIATION, PRECISION, PULL, Natural, gaussian_names, raw_of
from models.networks.network_factory import Network, kind_of
from models.networks.wrappers.tilted_posterior import RAW
from models.networks.wrappers.variational import Bias, is_gaussian, without
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos.errors import UserError
from tasks.expectation_propagation import POSTERIOR, absorb_apart, absorb_sites, divide_out, remove_sites
from tasks.messages.update_messages import SiteUpdates

KNOWN, SITES, COLUMNS = "known", "sites", "columns"
"""What the server knows: natural parameters and plain weights. Sites are the clients', in their stores, unless the server
holds them: then they are a section of its state, (clients, ...). Columns are layers of a client's own."""

Share = Literal["rows", "equal", "whole"]
"""How a client's step counts: by its rows among all that are visited with it, by their number, or in full."""


def begin(setup: TrainingSetup, bias: Bias, prior_precision: float, held: bool, columns: bool) -> ServerState:
    """The prior N(0, 1 / prior_precision), FedAvg's draw of what is not Gaussian, and sites that say nothing.

    UserError for a network of which no weight is Gaussian.
    """
    known: dict[str, torch.Tensor] = {}
    drawn = _drawn(setup, bias)
    if not any(is_gaussian(name, bias) for name in drawn):
        raise UserError(
            f"the network {kind_of(setup.network)} has no weight that could be Gaussian: these are those whose names end "
            "in .weight; name them so."
        )
    for name, w in drawn.items():
        if is_gaussian(name, bias):
            precision = torch.full_like(w, prior_precision, dtype=torch.float64)
            known |= Natural(torch.zeros_like(precision), precision).named(name)
        else:
            known[name] = w
    state = ServerState(
        {KNOWN: known}, {"informed": False, "called": []}, {POSTERIOR: {}, **({COLUMNS: {}} if columns else {})}
    )
    if not held:
        return state.with_private(SITES, {})
    clients = len(setup.silos.federated().clients)
    return state.with_tensors(**{SITES: {n: t.new_zeros(clients, *t.shape) for n, t in _nothing(known).items()}})


def known_to(
    network: Network, state: ServerState, setup: TrainingSetup, clients: Sequence[str], column: Weights
) -> Model:
    """What these clients get, or have: all that the server knows, their sites, and columns that begin like this one."""
    known = state.tensors[KNOWN]
    own: Weights | ClientStateRefs = ClientStateRefs(COLUMNS, state.private[COLUMNS], column) if column else {}
    if SITES not in state.tensors:
        site = ClientStateRefs(SITES, state.private[SITES], _nothing(known))
        return Model(network, known, own, site, tuple(clients))
    place, held = _places(setup), state.tensors[SITES]
    at = [
        place.get(client, len(place)) for client in clients
    ]  # who never trains has no place, and a site that says nothing
    padded = {name: torch.cat([t, torch.zeros_like(t[:1])]) for name, t in held.items()}
    return Model(network, known, own, {name: t[at] for name, t in padded.items()}, tuple(clients))


def fresh(column: Weights, bias: Bias, deviation: float) -> dict[str, torch.Tensor]:
    """Weights of a column as a Tilted network trains them: means, and "….raw" of which `deviation` comes."""
    law = fresh_law(column, bias, deviation)
    return {**column, **{name + RAW: raw_of(law[name + DEVIATION]) for name in gaussian_names(law)}}


def fresh_law(column: Weights, bias: Bias, deviation: float) -> dict[str, torch.Tensor]:
    """Weights of a column as a Variational network has them: means, and "….deviation", all the same."""
    gaussian = {name: w for name, w in column.items() if is_gaussian(name, bias)}
    return {**column, **{name + DEVIATION: torch.full_like(w, deviation) for name, w in gaussian.items()}}


def start(state: ServerState, setup: TrainingSetup, bias: Bias) -> Weights | None:
    """The means to learn from while the server has only the prior: FedAvg's draw, which everybody makes alike."""
    if state.numbers["informed"]:
        return None
    return {name: w for name, w in _drawn(setup, bias).items() if is_gaussian(name, bias)}


def shares(setup: TrainingSetup, clients: Sequence[str], by: Share, damping: float) -> dict[str, float]:
    """Client to what of its step counts."""
    rows = setup.silos.select(clients).rows("train")
    whole = {"rows": sum(rows.values()), "equal": len(clients), "whole": 1}[by]
    return {client: damping * (rows[client] if by == "rows" else 1) / max(whole, 1) for client in clients}


def absorbed(
    state: ServerState, round: RoundContext, messages: Sequence[SiteUpdates], least: float | None, kept: float
) -> tuple[ServerState, float]:
    """The state after what visited clients sent, and the share of it that the server could take.

    `least` and `kept` as of `absorb_apart`: where clients keep their sites neither does anything, and the share is 1.
    """
    taken, known = 1.0, state.tensors[KNOWN]
    if SITES in state.tensors:
        held = state.tensors[SITES]
        after = round.run_on_server(absorb_apart, messages, known, held, _places(round.setup), least, kept)
        state, taken = state.with_tensors(**{KNOWN: after.known, SITES: after.sites}), after.damping
    else:
        state = state.with_tensors(**{KNOWN: round.run_on_server(absorb_sites, messages, known)})
    for message in messages:
        for section, refs in message.private.items():
            state = state.with_private(section, refs)
    informed = state.numbers["informed"] or any(not torch.equal(t, known[n]) for n, t in state.tensors[KNOWN].items())
    return state.with_numbers(informed=informed), taken


def departed(state: ServerState, round: RoundContext, least: float | None) -> tuple[ServerState, float]:
    """The state without the sites of the round's clients, who leave, and the share of them that could be divided out.

    Clients that keep their sites send them; those that the server holds it takes out by itself, if guarded as in
    `absorb_apart`. What clients did to plain weights, which have no sites, stays.
    """
    known = state.tensors[KNOWN]
    if SITES in state.tensors:
        after = round.run_on_server(divide_out, round.clients, known, state.tensors[SITES], _places(round.setup), least)
        informed = any(bool(site.any()) for site in after.sites.values())
        state, taken = state.with_tensors(**{KNOWN: after.known, SITES: after.sites}), after.damping
    else:
        gone = [client for client in round.clients if client in state.private[SITES]]
        sites = ClientStateRefs(SITES, state.private[SITES], _nothing(known))
        model = Model(round.setup.network, {}, {}, sites, tuple(gone))
        messages = round.map_clients(remove_sites, model, round.setup.silos.select(gone))
        state = state.with_tensors(**{KNOWN: round.run_on_server(absorb_sites, messages, known)}).without_private(
            SITES, gone
        )
        informed, taken = bool(state.private[SITES]), 1.0
    return state.with_numbers(informed=state.numbers["informed"] and informed), taken


def law(known: Weights) -> dict[str, torch.Tensor]:
    """Natural parameters as means and deviations in float32, plain weights as they are: a Variational network's weights."""
    weights = {name: w for name, w in known.items() if not name.endswith((PULL, PRECISION))}
    for name in gaussian_names(known, PULL):
        natural = Natural.of(known, name)
        weights |= {name: natural.mean.float(), name + DEVIATION: natural.deviation.float()}
    return dict(sorted(weights.items()))


def report(state: ServerState, told: Sequence[SiteUpdates], taken: Sequence[float]) -> RoundReport:
    """Besides losses: how far posteriors are from their cavities, and how sure the server is of its weights."""
    known, usual = state.tensors[KNOWN], RoundReport.of(told)
    laws = [Natural.of(known, name) for name in gaussian_names(known, PULL)]
    precision = torch.cat([one.precision.flatten() for one in laws])
    signal = torch.cat([(one.mean.abs() > one.deviation).flatten() for one in laws])
    nats = {client: n for message in told for client, n in zip(message.clients, message.nats.tolist(), strict=True)}
    numbers = {
        "divergence/mean": sum(nats.values()) / max(len(nats), 1),
        "precision/mean": float(precision.mean()),
        "precision/least": float(precision.min()),
        "signal/share": float(signal.double().mean()),
    }
    if min(taken, default=1.0) < 1:
        numbers |= {"visits/taken": sum(taken) / len(taken), "visits/rejected": float(sum(t == 0 for t in taken))}
    return RoundReport({**usual.metrics, **numbers}, {**usual.client_metrics, "divergence": nats})


def _nothing(known: Weights) -> dict[str, torch.Tensor]:
    """A site that says nothing: zeros for natural parameters."""
    return {name: torch.zeros_like(t) for name, t in known.items() if name.endswith((PULL, PRECISION))}


def _drawn(setup: TrainingSetup, bias: Bias) -> Weights:
    return without(setup.network.init(server_stream(setup.seed, 0, "init")), bias)


def _places(setup: TrainingSetup) -> dict[str, int]:
    return {client: number for number, client in enumerate(setup.silos.federated().clients)}

"""Represents the posterior as a prior times one Gaussian factor of each client, its site (expectation propagation)."""

from collections.abc import Sequence
from typing import Literal

import torch

from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.gaussians import DEVIATION, PRECISION, PULL, Natural, gaussian_names, inverse_softplus
from models.networks.network_factory import Network, kind_of
from models.networks.wrappers.posterior_update import RAW
from models.networks.wrappers.variational import Bias, drop_biases, is_gaussian
from models.server_state import ClientStateRefs, ServerState, Weights
from silos.errors import UserError
from tasks.expectation_propagation import POSTERIOR, absorb_apart, absorb_sites, divide_out, remove_sites
from tasks.messages.round_messages import SiteUpdates

KNOWN, SITES, COLUMNS = "known", "sites", "columns"
"""Sections: the natural parameters and point weights that the server knows, the sites, and layers of a client's own.

Sites are in the clients' stores, or in the server's state, (clients, ...), if the server stores them."""

Share = Literal["rows", "equal", "whole"]
"""Weight of a client's step: its share of the rows of the clients visited together, an equal share, or 1."""


def initial_state(
    setup: TrainingSetup, bias: Bias, prior_precision: float, server_sites: bool, columns: bool
) -> ServerState:
    """Return the prior N(0, 1 / prior_precision), FedAvg's initial point weights, and sites of precision 0.

    Args:
        bias: How biases are represented.
        prior_precision: The precision of the prior of each Gaussian weight.
        server_sites: Whether the server stores the sites, not the clients.
        columns: Whether clients have layers of their own.

    Raises:
        UserError: If no weight of the network is Gaussian.
    """
    parameters: dict[str, torch.Tensor] = {}
    weights = _initial_weights(setup, bias)
    if not any(is_gaussian(name, bias) for name in weights):
        raise UserError(
            f"network {kind_of(setup.network)}: got no weight whose name ends in .weight, expected one, since "
            "only these become Gaussian. Rename the weights."
        )
    for name, w in weights.items():
        if is_gaussian(name, bias):
            precision = torch.full_like(w, prior_precision, dtype=torch.float64)
            parameters |= Natural(torch.zeros_like(precision), precision).named(name)
        else:
            parameters[name] = w
    # sites are neutral, so the posterior starts as the prior: a random site would count the start as evidence
    state = ServerState(
        {KNOWN: parameters}, {"informed": False, "called": []}, {POSTERIOR: {}, **({COLUMNS: {}} if columns else {})}
    )
    if not server_sites:
        return state.with_private(SITES, {})
    clients = len(setup.silos.federated().clients)
    return state.with_tensors(
        **{SITES: {n: t.new_zeros(clients, *t.shape) for n, t in _zero_sites(parameters).items()}}
    )


def site_model(
    network: Network, state: ServerState, setup: TrainingSetup, clients: Sequence[str], column: Weights
) -> Model:
    """Return the model that clients train.

    Args:
        network: The network, which reads natural parameters and a site.
        state: The state of the server; its parameters are shared.
        clients: The clients; their sites are the context.
        column: The initial layers of a client's own, which are personal; empty without such layers.
    """
    parameters = state.tensors[KNOWN]
    personal: Weights | ClientStateRefs = ClientStateRefs(COLUMNS, state.private[COLUMNS], column) if column else {}
    if SITES not in state.tensors:
        site = ClientStateRefs(SITES, state.private[SITES], _zero_sites(parameters))
        return Model(network, parameters, personal, site, tuple(clients))
    index = _client_indices(setup)
    rows = [
        index.get(client, len(index)) for client in clients
    ]  # the last row is the zero site of clients that never train
    padded = {name: torch.cat([t, torch.zeros_like(t[:1])]) for name, t in state.tensors[SITES].items()}
    return Model(network, parameters, personal, {name: t[rows] for name, t in padded.items()}, tuple(clients))


def trainable_column(column: Weights, bias: Bias, deviation: float) -> dict[str, torch.Tensor]:
    """Return a column's weights as a Tilted network trains them: means, and "….raw", the unconstrained deviations."""
    posterior = variational_column(column, bias, deviation)
    return {
        **column,
        **{name + RAW: inverse_softplus(posterior[name + DEVIATION]) for name in gaussian_names(posterior)},
    }


def variational_column(column: Weights, bias: Bias, deviation: float) -> dict[str, torch.Tensor]:
    """Return a column's weights as a Variational network reads them: means, and "….deviation", all equal."""
    gaussian = {name: w for name, w in column.items() if is_gaussian(name, bias)}
    return {**column, **{name + DEVIATION: torch.full_like(w, deviation) for name, w in gaussian.items()}}


def initial_means(state: ServerState, setup: TrainingSetup, bias: Bias) -> Weights | None:
    """Return FedAvg's initial weights as the means to train from; None once the server knows more than the prior."""
    if state.numbers["informed"]:
        return None
    return {name: w for name, w in _initial_weights(setup, bias).items() if is_gaussian(name, bias)}


def step_weights(setup: TrainingSetup, clients: Sequence[str], by: Share, damping: float) -> dict[str, float]:
    """Return the weight of each client's step, a_k: the damping times its share."""
    rows = setup.silos.select(clients).rows("train")
    total = {"rows": sum(rows.values()), "equal": len(clients), "whole": 1}[by]
    return {client: damping * (rows[client] if by == "rows" else 1) / max(total, 1) for client in clients}


def absorb_updates(
    state: ServerState, round: RoundContext, messages: Sequence[SiteUpdates], min_precision: float | None, kept: float
) -> tuple[ServerState, float]:
    """Apply the site updates of the visited clients.

    Args:
        min_precision: As in `absorb_apart`; unused if clients store their sites.
        kept: As `site_share` in `absorb_apart`; unused if clients store their sites.

    Returns:
        The new state, and the share of the updates that was applied, which is 1 if clients store their sites.
    """
    applied, parameters = 1.0, state.tensors[KNOWN]
    if SITES in state.tensors:
        sites, indices = state.tensors[SITES], _client_indices(round.setup)
        after = round.run_on_server(absorb_apart, messages, parameters, sites, indices, min_precision, kept)
        state, applied = state.with_tensors(**{KNOWN: after.known, SITES: after.sites}), after.damping
    else:
        state = state.with_tensors(**{KNOWN: round.run_on_server(absorb_sites, messages, parameters)})
    for message in messages:
        for section, refs in message.private.items():
            state = state.with_private(section, refs)
    informed = state.numbers["informed"] or any(
        not torch.equal(t, parameters[n]) for n, t in state.tensors[KNOWN].items()
    )
    return state.with_numbers(informed=informed), applied


def remove_clients(state: ServerState, round: RoundContext, min_precision: float | None) -> tuple[ServerState, float]:
    """Divide out the sites of the round's clients, which leave; return the share of them that was divided out.

    Clients that store their sites send them. If the server stores them, `min_precision` guards precisions as in
    `absorb_apart`. Point weights have no sites, so changes to them stay.
    """
    parameters = state.tensors[KNOWN]
    if SITES in state.tensors:
        sites, indices = state.tensors[SITES], _client_indices(round.setup)
        after = round.run_on_server(divide_out, round.clients, parameters, sites, indices, min_precision)
        informed = any(bool(site.any()) for site in after.sites.values())
        state, applied = state.with_tensors(**{KNOWN: after.known, SITES: after.sites}), after.damping
    else:
        leaving = [client for client in round.clients if client in state.private[SITES]]
        refs = ClientStateRefs(SITES, state.private[SITES], _zero_sites(parameters))
        model = Model(round.setup.network, {}, {}, refs, tuple(leaving))
        messages = round.map_clients(remove_sites, model, round.setup.silos.select(leaving))
        state = state.with_tensors(**{KNOWN: round.run_on_server(absorb_sites, messages, parameters)})
        state = state.without_private(SITES, leaving)
        informed, applied = bool(state.private[SITES]), 1.0
    return state.with_numbers(informed=state.numbers["informed"] and informed), applied


def variational_weights(parameters: Weights) -> dict[str, torch.Tensor]:
    """Convert natural parameters to float32 means and deviations, a Variational network's weights; keep point weights."""
    weights = {name: w for name, w in parameters.items() if not name.endswith((PULL, PRECISION))}
    for name in gaussian_names(parameters, PULL):
        natural = Natural.of(parameters, name)
        weights |= {name: natural.mean.float(), name + DEVIATION: natural.deviation.float()}
    return dict(sorted(weights.items()))


def report_round(state: ServerState, messages: Sequence[SiteUpdates], applied: Sequence[float]) -> RoundReport:
    """Report losses, divergences from cavities in nats, precisions, and the shares of updates that were applied."""
    parameters = state.tensors[KNOWN]
    gaussians = [Natural.of(parameters, name) for name in gaussian_names(parameters, PULL)]
    precision = torch.cat([gaussian.precision.flatten() for gaussian in gaussians])
    signal = torch.cat([(gaussian.mean.abs() > gaussian.deviation).flatten() for gaussian in gaussians])
    nats = {client: n for message in messages for client, n in zip(message.clients, message.nats.tolist(), strict=True)}
    numbers = {
        "divergence/mean": sum(nats.values()) / max(len(nats), 1),
        "precision/mean": float(precision.mean()),
        "precision/least": float(precision.min()),
        "signal/share": float(signal.double().mean()),
    }
    if min(applied, default=1.0) < 1:
        numbers |= {
            "visits/taken": sum(applied) / len(applied),
            "visits/rejected": float(sum(a == 0 for a in applied)),
        }
    return RoundReport.from_updates(messages).merge(RoundReport(numbers, {"divergence": nats}))


def _zero_sites(parameters: Weights) -> dict[str, torch.Tensor]:
    """Return the site of a client without updates: zero natural parameters."""
    return {name: torch.zeros_like(t) for name, t in parameters.items() if name.endswith((PULL, PRECISION))}


def _initial_weights(setup: TrainingSetup, bias: Bias) -> Weights:
    return drop_biases(setup.initial_weights(), bias)


def _client_indices(setup: TrainingSetup) -> dict[str, int]:
    return {client: index for index, client in enumerate(setup.silos.federated().clients)}

"""Authors' VIRTUAL: two generations of the authors' code, an option per deviation.

2020:  t_k <- a random guess that counts as evidence;  a_k = 0.24 for all k;  t_k <- t_k r_k^(1 / 0.6),  s <- s prod_k r_k;
       cavities may be improper;  the server is scored with doubled precision, by one draw
2019:  clients are visited one after another, with columns of their own;  cavities may be improper

(Corinzia et al. 2019, versions 1 and 2; docs/methods/virtual.md lists the defects.)
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from flows.methods import virtual
from flows.methods.common import posterior_sites
from flows.methods.common.posterior_sites import KNOWN, SITES
from flows.methods.round_context import TrainingSetup
from models.client_model import Model
from models.gaussians import DEVIATION, gaussian_names, natural
from models.prng import client_streams
from models.server_state import ServerState
from silos import param_limits

_GENERATIONS: Mapping[int, Mapping[str, Any]] = {
    2020: {
        "site": "free",
        "bias": "none",
        "kl_weight": 2e-5,  # 1e-5 in their code, which adds it twice
        "share": "whole",
        "damping": 0.24,  # damping 0.4 times server rate 0.6
        "draws": 1,
    },
    2019: {
        "site": "free",
        "noise": "naive",
        "kl_weight": 0.1,  # divided by rows and by 10 draws
        "visits": "sequential",
        "share": "whole",
        "columns": "beside",
        "evidence": False,
        "kept": 1.0,
        "doubled_precision": False,
    },
}


class VirtualAuthors(virtual.Virtual):
    """`evidence`: sites start as a random draw of each client. `kept`: the factor of a site's step; the server's is 1.

    `guarded` false applies steps that leave negative precisions. `generation` sets the options that are not set.
    """

    generation: Literal[2019, 2020] = Field(
        2020, description="which of the authors' codes to follow; it sets the options that you do not set"
    )
    evidence: bool = Field(True, description="whether every site starts as a random estimate that counts")
    kept: float = Field(
        1 / 0.6, ge=0, le=param_limits.MAX_REAL, description="the step size of a site relative to the server's"
    )
    guarded: bool = Field(False, description="refuse steps that give negative precisions")
    doubled_precision: bool = Field(True, description="score the server with its precision doubled")

    @model_validator(mode="before")
    @classmethod
    def _generation_defaults(cls, options: dict[str, Any]) -> dict[str, Any]:
        generation = options.get("generation", 2020)
        defaults = {} if isinstance(generation, list | dict) else _GENERATIONS.get(generation, {})  # unhashable
        return {**defaults, **options}

    @model_validator(mode="after")
    def _check_site(self) -> "VirtualAuthors":
        if self.site != "free" and (self.evidence or self.kept != 1):
            raise ValueError(
                "got evidence or kept with a site other than free, expected evidence: false and kept: 1, since "
                "clients then store their sites. Set both so"
            )
        return self

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return the prior, and the sites of the clients' random guesses multiplied into it."""
        state = super().init(setup)
        if not self.evidence:
            return state
        sites = {**state.tensors[SITES]}
        clients = setup.silos.federated().clients
        weight = posterior_sites.step_weights(setup, clients, "rows", 1.0)
        for i, stream in enumerate(client_streams(setup.seed, clients, 0, "init")):
            means = setup.network.init(stream)
            for name in gaussian_names(sites, ".pull"):
                guess = natural(means[name], torch.full_like(means[name], self.deviation)).named(name)
                for part, value in guess.items():
                    sites[part][i] = weight[clients[i]] * value
        parameters = {name: w + sites[name].sum(0) if name in sites else w for name, w in state.tensors[KNOWN].items()}
        return state.with_tensors(**{KNOWN: parameters, SITES: sites}).with_numbers(informed=True)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the server's posterior, with its precision doubled if `doubled_precision`."""
        model = super().model(state, setup)
        if not self.doubled_precision:
            return model
        weights = {name: w * 0.5**0.5 if name.endswith(DEVIATION) else w for name, w in model.shared.items()}
        return Model(model.network, weights, clients=model.clients)

    @property
    def _min_precision(self) -> float | None:
        return super()._min_precision if self.guarded else None

    @property
    def _kept(self) -> float:
        return self.kept

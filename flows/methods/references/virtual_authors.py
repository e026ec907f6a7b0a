"""Authors' VIRTUAL: what the two generations of their code do, each deviation from VIRTUAL an option of its own.

2020:  every site starts as a random guess that counts as evidence;  a_k = 0.24 for everybody;  a client keeps 1 / 0.6 of
       what the server takes;  nothing keeps cavities proper;  the server is scored with its precision doubled, by one draw
2019:  clients are visited one after another, with columns of their own;  nothing keeps cavities proper

(Corinzia et al. 2019, versions 1 and 2; docs/methods/virtual.md lists the defects.)
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from flows.methods import virtual
from flows.methods.common import ep_sites
from flows.methods.common.ep_sites import KNOWN, SITES
from flows.methods.context import TrainingSetup
from models.client_model import Model
from models.gaussians import DEVIATION, gaussian_names, natural
from models.prng import client_streams
from models.server_state import ServerState
from silos import param_types

_GENERATIONS: Mapping[int, Mapping[str, Any]] = {
    2020: {
        "site": "free",
        "bias": "none",
        "kl_weight": 2e-5,  # theirs is 1e-5, and is counted twice
        "share": "whole",
        "damping": 0.24,  # their damping of 0.4 and server rate of 0.6
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
    """`evidence`: sites start as a draw of each client's own. `kept`: what a site takes of a step; the server takes 1.

    `guarded` false takes steps that leave negative precisions; `generation` sets what is not set beside it.
    """

    generation: Literal[2019, 2020] = Field(2020, description="which of their codes; sets what is not set beside it")
    evidence: bool = Field(True, description="every site starts as a random guess that counts")
    kept: float = Field(
        1 / 0.6, ge=0, le=param_types.MAX_REAL, description="what a site takes of a step of which the server takes 1"
    )
    guarded: bool = Field(False, description="refuse steps that leave negative precisions")
    doubled_precision: bool = Field(True, description="score the server with its precision doubled")

    @model_validator(mode="before")
    @classmethod
    def _of_generation(cls, given: dict[str, Any]) -> dict[str, Any]:
        asked = given.get("generation", 2020)
        of_generation = {} if isinstance(asked, list | dict) else _GENERATIONS.get(asked, {})  # these have no hash
        return {**of_generation, **given}

    @model_validator(mode="after")
    def _held(self) -> "VirtualAuthors":
        if self.site != "free" and (self.evidence or self.kept != 1):
            raise ValueError(
                "with a site other than free set evidence to false and kept to 1: clients hold their sites"
            )
        return self

    def init(self, setup: TrainingSetup) -> ServerState:
        """The prior, and what the clients' random guesses add to it."""
        state = super().init(setup)
        if not self.evidence:
            return state
        held = {**state.tensors[SITES]}
        clients = setup.silos.federated().clients
        share = ep_sites.shares(setup, clients, "rows", 1.0)
        for at, stream in enumerate(client_streams(setup.seed, clients, 0, "init")):
            drawn = setup.network.init(stream)
            for name in gaussian_names(held, ".pull"):
                guess = natural(drawn[name], torch.full_like(drawn[name], self.deviation)).named(name)
                for part, value in guess.items():
                    held[part][at] = share[clients[at]] * value
        known = {name: w + held[name].sum(0) if name in held else w for name, w in state.tensors[KNOWN].items()}
        return state.with_tensors(**{KNOWN: known, SITES: held}).with_numbers(informed=True)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The server's posterior, as it is or with its precision doubled."""
        model = super().model(state, setup)
        if not self.doubled_precision:
            return model
        narrower = {name: w * 0.5**0.5 if name.endswith(DEVIATION) else w for name, w in model.shared.items()}
        return Model(model.network, narrower, clients=model.clients)

    @property
    def _least(self) -> float | None:
        return super()._least if self.guarded else None

    @property
    def _kept(self) -> float:
        return self.kept

"""Clients that leave for good tell what to divide out of what the server knows: their sites."""

from typing import cast

import torch

from models.model import Model
from models.state import Private
from silos.client_store import PrivateStore
from silos.cohort import Cohort
from tasks.local_train import weighted_sum
from tasks.messages import SitesWithdrawn
from tasks.running.opening import open_private
from tasks.running.step import step


@step
def withdraw(cohort: Cohort, model: Model, private: PrivateStore, device: str = "cpu") -> list[SitesWithdrawn]:
    """One message a stack; the model's context is where its clients keep their sites. No rows are opened."""
    messages = []
    for stack in cohort.stacks:
        sites = open_private(cast(Private, model.context), stack, private, device)
        count = len(stack.clients)
        back = -torch.ones(count, dtype=torch.float64)
        sums = {name: weighted_sum(site[:count].cpu(), back) for name, site in sites.items()}
        messages.append(SitesWithdrawn(stack.clients, sums))
    return messages

"""FedAvg whose loss weighs classes by how far the shared model is from right on them, by gradients of each class.

every client: g_c = sum of the loss's gradient in the logits over its rows of class c, if they are enough to report
the server:   u_c = |sum of g_c| / rows of c;  in this round's loss class c weighs (u_c / mean u)^strength"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.plugins import register_method
from models.networks.wrapper import NetworkWrapper
from models.training.execution_plan import resolve
from models.training.objectives import loss_and_gradient
from silos.cohort import Cohort
from tasks.aggregate import aggregate
from tasks.execution.load_client_data import has_enough_of_class, least_rows, load_stacks
from tasks.execution.steps import step
from tasks.local_train import local_train
from tasks.messages.message_policy import SEVERAL_ADDED, Message


@dataclass(frozen=True)
class ClassGradients(Message):
    with_model = False  # local training of the same round counts it
    rows: Annotated[torch.Tensor, SEVERAL_ADDED]  # (classes,) int64
    sums: Annotated[torch.Tensor, SEVERAL_ADDED]  # (classes, classes) float64, of class and logit


@step
def class_gradients(cohort: Cohort, model, private, training, device="cpu") -> list[ClassGradients]:
    sent = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        logits = resolve(model.network, training.engine).logits(weights, context, rows.x, None)
        _, slope = loss_and_gradient(training.objective, logits.flatten(0, 1), rows.y.flatten())
        own = has_enough_of_class(rows, logits.shape[-1], least_rows(stack, private))
        sent.append(ClassGradients(stack.clients, own.sum((0, 1)).long(), own.flatten(0, 1).T @ slope.double().cpu()))
    return sent


class ByClass(NetworkWrapper):
    def cost(self, weights, context, batch, objective):
        return super().cost(weights, context, batch, lambda logits, y: objective(logits, y) * context["weight"][y])


@register_method("class_gradients")
class ClassWeighted(fedavg.FedAvg):
    strength: float = 1.0

    def run_round(self, state, round):
        model = self.model(state, round.setup).select(round.clients)
        sent = round.map_clients(class_gradients, model, training=round.setup.training)
        u = sum(m.sums for m in sent).norm(dim=1) / sum(m.rows for m in sent).clamp_min(1)
        weight = torch.where(u > 0, u / u[u > 0].mean(), 1.0).float().expand(len(model.clients), -1) ** self.strength
        updates = round.train(local_train, replace(model, network=ByClass(model.network), context={"weight": weight}))
        state = state.with_tensors(weights=round.run_on_server(aggregate, updates, model.shared))
        return state, RoundReport.from_updates(updates)

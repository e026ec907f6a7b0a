"""Steps that say who takes part: clients to train on, clients of a known law, clients of a law nobody knows."""

from collections import Counter
from dataclasses import replace

from silos.rows import At, Partition, Role, some
from silos.schemes.change_params import Fresh, HoldOut


def hold_out(step: HoldOut, made: Partition, at: At) -> Partition:
    """The clients of the named domains become `unseen`: leave-one-domain-out, as with PACS."""
    clients = made.clients
    domains = list(dict.fromkeys(clients.domains))
    for name in step.domains:
        if name not in domains:
            there = f"there are {some(domains)}" if any(domains) else "these clients have none"
            raise at.error(f"holds out the domain {name!r}, and there is no such domain; {there}.")
    held = set(step.domains)
    pairs = list(zip(clients.domains, clients.roles, strict=True))
    if not any(domain not in held and role == "federated" for domain, role in pairs):
        only = f"the only one, {domains[0]!r}" if len(domains) == 1 else "every one that trains"
        raise at.error(f"holds out {only}, and leaves no domain to train on; hold out fewer.")
    roles: list[Role] = ["unseen" if domain in held else role for domain, role in pairs]
    return replace(made, clients=replace(clients, roles=roles))


def fresh(step: Fresh, made: Partition, at: At) -> Partition:
    """The last clients of each domain become `fresh`; clients that are `unseen` already stay so."""
    pairs = list(zip(made.clients.domains, made.clients.roles, strict=True))
    counts = Counter(domain for domain, role in pairs if role == "federated")
    for domain, count in counts.items():
        if count <= step.per_domain:
            where = f"the domain {domain!r} has" if domain else "there are"
            raise at.error(
                f"takes {step.per_domain} clients of each domain, and {where} {count}; leave one to train on."
            )
    roles: list[Role] = []
    for domain, role in pairs:
        if role == "federated":
            counts[domain] -= 1
        roles.append("fresh" if role == "federated" and counts[domain] < step.per_domain else role)
    return replace(made, clients=replace(made.clients, roles=roles))

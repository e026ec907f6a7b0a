"""Steps that say who takes part: clients to train on, clients of a known law, clients of a law nobody knows."""

from collections import Counter
from dataclasses import replace

from silos.rows import At, Partition, some
from silos.schemes.change_params import Fresh, HoldOut


def hold_out(step: HoldOut, made: Partition, at: At) -> Partition:
    """The clients of the named domains become `unseen`: leave-one-domain-out, as with PACS."""
    domains = list(dict.fromkeys(client.domain for client in made.clients))
    for name in step.domains:
        if name not in domains:
            there = f"there are {some(domains)}" if any(domains) else "these clients have none"
            raise at.error(f"holds out the domain {name!r}, and there is no such domain; {there}.")
    if not any(client.domain not in step.domains and client.role == "federated" for client in made.clients):
        only = f"the only one, {domains[0]!r}" if len(domains) == 1 else "every one that trains"
        raise at.error(f"holds out {only}, and leaves no domain to train on; hold out fewer.")
    return replace(made, clients=[replace(c, role="unseen") if c.domain in step.domains else c for c in made.clients])


def fresh(step: Fresh, made: Partition, at: At) -> Partition:
    """The last clients of each domain become `fresh`; clients that are `unseen` already stay so."""
    counts = Counter(client.domain for client in made.clients if client.role == "federated")
    for domain, count in counts.items():
        if count <= step.per_domain:
            where = f"the domain {domain!r} has" if domain else "there are"
            raise at.error(
                f"takes {step.per_domain} clients of each domain, and {where} {count}; leave one to train on."
            )
    clients = []
    for client in made.clients:
        if client.role == "federated":
            counts[client.domain] -= 1
            client = client if counts[client.domain] >= step.per_domain else replace(client, role="fresh")
        clients.append(client)
    return replace(made, clients=clients)

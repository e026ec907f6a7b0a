"""The clients that take part in most differences: the split of clients that explains which pairs differ."""

import math

import numpy as np


def find_odd_clients(first: np.ndarray, second: np.ndarray, differ: np.ndarray, clients: int) -> list[int]:
    """Return the smaller part of the split of clients across which pairs differ most; empty if no split explains it.

    With few rows a pair seldom shows a difference, so most pairs of two unlike groups may not differ. A split describes
    pairs by two rates, across its parts and within them. It counts if it shortens their description, the description
    of the split included (minimum description length).

    Args:
        first: The first client of each compared pair, (pairs,).
        second: The second client.
        differ: Whether the pair differs, (pairs,) bool.
        clients: The number of clients, also of those in no compared pair.
    """
    compared, found = np.zeros((clients, clients)), np.zeros((clients, clients))
    compared[first, second] = compared[second, first] = 1
    found[first, second] = found[second, first] = differ
    part, best, saved = np.zeros(clients, bool), np.zeros(clients, bool), 0.0
    while part.sum() < clients // 2 and clients > 2:  # also through sizes that save less than the size before
        splits = [part | (np.arange(clients) == client) for client in np.flatnonzero(~part)]
        gains = [_saved(compared, found, split) for split in splits]
        part = splits[int(np.argmax(gains))]
        if max(gains) > saved:
            best, saved = part, max(gains)
    return np.flatnonzero(best).tolist()


def _saved(compared: np.ndarray, found: np.ndarray, part: np.ndarray) -> float:
    """Return by how many nats a split shortens the description of which pairs differ."""
    across = np.outer(part, ~part)
    pairs, differing = compared[across].sum(), found[across].sum()
    all_pairs, all_differing = compared.sum() / 2, found.sum() / 2
    inside, differing_inside = all_pairs - pairs, all_differing - differing
    if not pairs or differing * inside <= differing_inside * pairs:  # pairs within the parts differ as often
        return -math.inf
    split = math.log(math.comb(len(part), int(part.sum()))) + math.log(len(part))
    described = _nats(differing, pairs) + _nats(differing_inside, inside)
    return _nats(all_differing, all_pairs) - described - split


def _nats(hits: float, total: float) -> float:
    """Return the length of a sequence with this number of hits, encoded at its own rate."""
    return -sum(count * math.log(count / total) for count in (hits, total - hits) if count)

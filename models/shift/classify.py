"""From what tests found to the name of a shift: a tree that knows no numbers, only what was rejected."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from models.shift.nested_tests import Evidence

FEWEST = 20
"""Rows of a client below which nothing is said."""

BROKEN = 0.2
"""Of lossy features: the share of what parts classes that another pairing of classes explains better."""


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Of pairs, (pairs,) each: types (pairs, 3) bool in the order of TYPES, none of them is no shift."""

    types: np.ndarray
    undetermined: np.ndarray  # too few rows, or too few of any class, to say anything
    transform: np.ndarray  # a gain and an offset of the inputs undo it
    margins_only: np.ndarray  # no class is told by both: only P(X) and P(Y) were compared


class SecondLook(Protocol):
    """What is looked at where odds ratios differ; all are of pairs, (pairs,), and asked for those places only."""

    def transforms(self, places: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Whether a gain and an offset of the inputs explain the features that differ, (places, features) bool."""
        ...

    def broken(self, places: np.ndarray) -> np.ndarray | None:
        """The share of what parts classes that another pairing explains, (places,); None where features lose nothing."""
        ...


def classify_pairs(found: Evidence, rows: np.ndarray, look: SecondLook, numbers: bool = False) -> Verdicts:
    """rows: (pairs, 2); numbers: classes are groups of targets.

    Targets that all move by an amount leave odds ratios as they are, and P(X): what changed is P(Y | X), and no other.
    """
    undetermined: np.ndarray = np.any(rows < FEWEST, axis=-1)
    undetermined |= (
        ~found.tested & ~found.labels & ~found.bins.any(-1)
    )  # little was compared, and there nothing was seen
    concept = found.interaction.any(-1)
    none = ~found.labels & ~found.bins_in_classes.any(-1) & (found.tested | ~found.bins.any(-1))
    label = found.labels & ~found.bins_in_classes.any(-1)
    feature = (found.bins & ~found.classes_in_bins).any(-1) & ~concept & found.tested
    feature &= (
        found.covered | ~found.labels
    )  # what moved the share of a class that one lacks cannot be seen in P(Y | X)
    both, label_fits = label & feature, found.misfit_label <= found.misfit_feature
    label, feature = label & (~both | label_fits), feature & (~both | ~label_fits)
    simple = none | label | feature
    mixed, moved = ~simple & ~concept, found.at_priors.any(-1)
    last = ~simple & concept
    shifted = mixed & ~found.bins.any(-1) & found.classes_in_bins.any(-1) & numbers
    types = np.stack(
        [feature | (mixed & ~shifted) | (last & moved), label | (~simple & found.labels), last | shifted], -1
    )
    transform = np.zeros(len(types), bool)
    places = np.flatnonzero(last & moved & ~undetermined)
    if len(places):
        transform[places] = look.transforms(places, found.interaction[places])
        types[places, 2] &= ~transform[places]
        share = look.broken(places)
        if share is not None:
            types[places, 2] &= share > BROKEN
    types[none | undetermined] = False
    return Verdicts(types, undetermined, transform & ~none, ~found.tested & ~undetermined)


def among(named: Verdicts, differ: np.ndarray) -> Verdicts:
    """Where many pairs were looked at together, and only these are said to differ at all: (pairs,) bool."""
    return replace(named, types=named.types & differ[:, None], transform=named.transform & differ)

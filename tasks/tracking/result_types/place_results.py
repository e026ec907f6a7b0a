"""Types of what the commands `siloflow place ...` print."""

from typing import Any, Literal, TypedDict


class PlaceKey(TypedDict):
    """What `place init`, `place invite`, `place join`, `place accept` and `place revoke` print."""

    place: str | None
    """None for the coordinator."""
    address: str
    """Where messages travel."""
    fingerprint: str | None
    """Of the key of the end that printed it; the other end reads it on the telephone."""
    file: str | None
    """The invitation that was written."""


class PlaceState(TypedDict):
    """A place, as its coordinator sees it."""

    place: str
    joined: bool
    answer: str
    """What it holds, or why it does not answer."""


class PlaceModels(TypedDict):
    """What `place send` prints."""

    run: str
    """The folder of the run whose model was sent."""
    version: str | None
    """The number of its version in the registry; None if it was sent as a run."""
    places: list[PlaceState]
    """What each place answers: that it has the model, or why not."""


class PlaceStatus(TypedDict):
    """What `place status` prints."""

    role: Literal["coordinator", "place"]
    name: str
    address: str
    fingerprint: str
    places: list[PlaceState]
    """Empty at a place."""


class DescribedSilo(TypedDict):
    """A silo of a place, and what its owner's file restricts."""

    silo: str
    rows: dict[str, int]
    policy: dict[str, Any]


class PlaceDescription(TypedDict):
    """What a coordinator can learn of a place, and ask of it."""

    place: str | None
    """None for a project that has not joined a coordinator."""
    address: str | None
    data: str
    part: str
    owner_file: str
    approved: str | None
    """When and by whom the owner's file was approved as it is; empty if it was not, and None for public data."""
    task: str
    classes: list[str]
    features: list[str]
    silos: list[DescribedSilo]
    machine: dict[str, str]
    """What the last bits of results depend on: the version of torch, and the processor."""
    steps: list[str]
    """The steps that it may be asked to run."""
    messages: list[str]
    """The kinds of messages that these steps return."""

"""Types of what `siloflow cost` prints: what a network needs of a client's machine."""

from typing import TypedDict


class Operations(TypedDict):
    """Multiplications with additions: of one row, and of a round of the largest client."""

    forward: int
    forward_and_backward: int
    round: int


class LargestClient(TypedDict):
    """The client with the most training rows, and its local epochs in a round."""

    client: str
    rows: int
    epochs: int


class ModelBytes(TypedDict):
    """The size of the weights as a file, and of what a client sends and receives in a round of FedAvg."""

    file: int
    up: int
    down: int


class Latency(TypedDict):
    """Milliseconds of one row's forward pass on one thread: the median of `passes`, and the quartiles."""

    milliseconds: float
    quartiles: list[float]
    passes: int


class MeasuredBatch(TypedDict):
    """Bytes of memory for a batch of `rows`."""

    rows: int
    what: str
    """Which batch it is, such as `largest client`."""
    largest_activation: int
    """Of the largest layer."""
    training_floor: int | None
    """Of a training step at least; null for a batch that is evaluated only."""
    evaluation: int | None
    """As measured, like `training`; null if it was not."""
    training: int | None


class MemoryProfile(TypedDict):
    """Bytes of memory by batch."""

    rows: list[MeasuredBatch]
    repeats_within: int | None
    """The largest difference between two measurements of a batch."""
    note: str | None
    """Why nothing was measured."""


class NetworkProfile(TypedDict):
    """What the network of params.yaml, or of a method, needs."""

    method: str | None
    network: str
    """Its kind."""
    shape: list[int]
    outputs: int
    data_version: str
    parameters: int
    buffers: int
    macs: Operations
    largest_client: LargestClient
    bytes: ModelBytes
    latency: Latency
    memory: MemoryProfile

"""Types of what `siloflow init` and `siloflow partition` print."""

from typing import NotRequired, TypedDict


class RowsRead(TypedDict):
    """The user's rows as they were read; `clients` is null without a column of clients or domains."""

    rows: int
    shape: list[int]
    classes: int
    """0 for a regression."""
    clients: int | None


class ChosenNetwork(TypedDict):
    """The network that params.yaml names."""

    kind: str
    hidden: NotRequired[list[int]]
    """Of an mlp."""


class CreatedProject(TypedDict):
    """What `siloflow init` prints."""

    folder: str
    repositories: list[str]
    """The repositories that were created: git, DVC."""
    committed: bool
    """Whether git has a first commit."""
    ops: bool
    copied: str | None
    """The name of the data that were copied."""
    own_copy: str | None
    """The project's own data, if these differ from those that the user named."""
    guessed: list[str]
    """What was guessed, in sentences."""
    left_out: list[str]
    """Columns that are no features, and why."""
    missing: list[str]
    """What the choices about missing values do, the chosen one first."""
    replaced: str | None
    """The name that an earlier params.yaml has now."""
    read: RowsRead | None
    """Null without a file."""
    network: ChosenNetwork


class PartitionResult(TypedDict):
    """What `siloflow partition` prints."""

    name: str
    folder: str
    clients: int
    rows: dict[str, int]
    """All clients' rows by split."""
    common: dict[str, int]
    """Rows that no client owns, by split."""
    data_version: str
    changed: bool
    """Whether data.dvc records another version than before."""
    uncommitted: bool
    """Whether git has not committed data.dvc."""
    to_commit: list[str]
    notes: list[str]
    params_yaml: list[str]
    """The lines that params.yaml lacks to describe these data."""

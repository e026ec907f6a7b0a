"""Types of what `siloflow show` and `siloflow data` print."""

from typing import TypedDict

from silos.data_overview import Overview
from silos.versioning.data_versions import VersionChanges


class ShownOverview(Overview):
    """The silos, as `siloflow show` prints them; of very many clients only some are opened, and a few of these listed."""

    data_version: str
    opened: int
    """The number of opened clients."""
    reported: bool
    """Whether statistics are what silos report of their training rows, as of data of one's own."""
    refused: dict[str, str]
    """The silos that report nothing, and why."""
    figure: str | None
    """The path of the figure, relative to the project; None without matplotlib, as at a place."""


class LoggedVersion(TypedDict):
    """A version of data/ that a commit records."""

    revision: str
    date: str
    subject: str
    """The first line of the commit's message."""
    digest: str
    partitions: list[str]
    """Empty if DVC's cache lacks the version."""


class VersionLog(TypedDict):
    """The versions that git knows, newest first; `now` is what data.dvc records, null without the file."""

    now: str | None
    versions: list[LoggedVersion]


class VersionDiff(VersionChanges):
    """What changed between two versions, given by their hashes."""

    before: str
    after: str


class RestoredVersion(TypedDict):
    """A version that was restored, and what params.yaml must say for a run on it."""

    digest: str
    partitions: list[str]
    settings: list[str]
    """Overrides for `--set`."""
    params_differ: str | None
    """Why no settings fit; null if they do."""


class LedgerRecord(TypedDict):
    """What a silo reported, in numbers of reports with and without noise, and its policy; `spent` is epsilon at delta."""

    name: str
    missing: bool
    exact: int
    noisy: int
    runs: int
    """Runs with training.privacy that were paid."""
    spent: float
    last: str
    """When the silo reported last (UTC), and whose command asked; empty if it never did."""
    budget: float
    delta: float
    least_rows: int
    least_cell: int
    bins: int
    without_noise: bool
    other_bins: bool
    other_silos: bool
    key: str
    """The key of the silo in secure sums, with `--keys`; else empty."""


class LoggedRequest(TypedDict):
    """A line of what was asked of silos, reported or refused."""

    when: str
    """The time (UTC)."""
    by: str
    silo: str
    """Empty for a command, or a step at a place, of all silos."""
    asked: str
    answer: str
    rows: int | None
    """The rows behind a report without noise."""
    rho: float | None
    """What a report cost, 0 without noise; None for other lines."""
    epsilon: float | None
    """What it would cost alone, at the delta of the silo's owner."""


class LedgersResult(TypedDict):
    """The ledgers of all silos; `unknown` are silos that the policy names and the data lack."""

    policy: str
    """The path of the policy, relative to the project."""
    silos: list[LedgerRecord]
    unknown: list[str]
    log: list[LoggedRequest]
    """With `--log`, in the order of time; else empty."""

"""Types of what `siloflow up`, `siloflow status` and `siloflow down` print."""

from typing import Literal, TypedDict

from silos.versioning.dvc_files import RemoteStatus

ServiceName = Literal["prefect", "mlflow", "worker"]


class ServiceState(TypedDict):
    """A service that `siloflow up` starts."""

    service: ServiceName
    state: Literal["elsewhere", "up", "starting", "down"]
    address: str | None
    pid: int | None
    memory: int
    """Bytes, with those of its child processes."""
    restarts: int


class ServicesState(TypedDict):
    """The services of a project."""

    up: bool
    problem: str | None
    """Why the services have ended."""
    services: list[ServiceState]


class StartedServices(ServicesState):
    """What `siloflow up` prints."""

    started: bool
    """False if the services ran already."""


class StoppedServices(TypedDict):
    """What `siloflow down` prints."""

    stopped: bool
    in_use: bool
    """Whether Prefect's server keeps running for another command."""


class Status(ServicesState):
    """What `siloflow status` prints."""

    remote: RemoteStatus | None
    """Null without a default remote."""

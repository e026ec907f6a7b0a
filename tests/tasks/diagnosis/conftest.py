"""Questions of small silos, asked as a diagnosis asks them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.core.config.diagnose_params import DiagnoseParams
from flows.diagnosis.query_clients import Responses, build_query, first_query, query_clients
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.data_params import DataParams
from silos.privacy.owner_file import OWNER_FILE, make_store
from silos.storage.partition_store import write
from tasks.diagnosis.report_summary import join_summaries
from tasks.execution.task_runner import PlainRunner, Runner


class PairRequest:
    """What was asked of silos, and what they answered: to the first question, if there was one, and to the second."""

    def __init__(
        self, silos: Silos, private: Path, params: DiagnoseParams, runner: Runner, least_cell: int | None = None
    ) -> None:
        store = ClientStore(str(private))
        make_store(private)
        if least_cell is not None:
            text = (private / OWNER_FILE).read_text()
            (private / OWNER_FILE).write_text(text.replace("least_cell: 10", f"least_cell: {least_cell}"))
        self.first = first_query(silos, params)
        self.to_first: Responses | None = self.first and query_clients(runner, silos, store, self.first, params)
        told = join_summaries(self.to_first.messages) if self.to_first else None
        self.question = build_query(silos, params, told)
        self.answers = query_clients(runner, silos, store, self.question, params)

    @property
    def messages(self) -> list[Any]:
        """All, of both questions."""
        return [*(self.to_first.messages if self.to_first else []), *self.answers.messages]


@pytest.fixture
def silos_of(tmp_path: Path) -> Callable[..., Silos]:
    """Writes silos of these rows, client to (x, y) or (x, y, unit), all to train on; NaN where features allow it."""
    number = iter(range(10_000))

    def build(rows: dict[str, Any], task: str = "classification", features: Any = None, classes: int = 0) -> Silos:
        name = f"own{next(number)}"
        client = np.repeat(list(rows), [len(own[1]) for own in rows.values()])
        by_unit = all(len(own) == 3 for own in rows.values())
        units = {"who": np.concatenate([own[2] for own in rows.values()])} if by_unit else {}
        x, y = (np.concatenate([own[at] for own in rows.values()]) for at in (0, 1))
        if classes:  # a client of its own has a row of each, so that the schema has them all
            x, y = np.concatenate([x, np.zeros((classes, *x.shape[1:]))]), np.concatenate([y, np.arange(classes)])
            client = np.append(client, ["zz"] * classes)
        x = x if x.dtype == np.uint8 else x.astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, client=client, split=np.repeat("train", len(y)), **units)
        data = DataParams.model_validate(
            {
                "name": name,
                "seed": 0,
                "source": {"kind": "npz", "path": f"{name}.npz", "task": task, **({"unit": "who"} if units else {})},
                "scheme": [{"kind": "column", "column": "client"}],
                "split": {"validation": 0.0, "test": 0.0},
                **({"features": features} if features else {}),
            }
        )
        write(tmp_path / "data" / name, data, tmp_path)
        silos = Silos.open(tmp_path / "data" / name, f"{tmp_path.name}-{name}")
        return silos.select(list(rows))

    return build


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., PairRequest]:
    """Asks silos; `keeps` names what clients remember by, so that others are asked for the first time.

    least_cell: what their owner allows, if it is not the default.
    """
    number = iter(range(10_000))

    def ask_all(
        silos: Silos, keeps: str = "", runner: Runner | None = None, least_cell: int | None = None, **params: Any
    ) -> PairRequest:
        folder = tmp_path / "private" / (keeps or f"new{next(number)}/own")
        asked_for = DiagnoseParams.model_validate(params)
        return PairRequest(silos, folder, asked_for, runner or PlainRunner(), least_cell)

    return ask_all

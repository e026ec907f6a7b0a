"""Downloads of published sets, the error if one fails, and the selection of rows."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.partitioners.data_rng import data_stream
from silos.sources.source_params import Downloaded, RowLimits


def fetch(
    source: Downloaded, root: Path, missing: Sequence[Path], download: Callable[[], object], accepted: str
) -> None:
    """Download what is missing, if that is allowed; else a UserError says which files to put where.

    `accepted` names the other forms in which the files may lie there.
    """
    if not missing:
        return
    folder = root / source.download_dir
    files = ", ".join(path.relative_to(folder).as_posix() for path in missing)
    reason = "data.source.download is false"
    if source.download:
        try:
            download()
        except Exception as error:  # torchvision raises whatever urllib, zipfile or tarfile do
            reason = f"the download failed: {_first_line(error)}"
        if all(path.exists() for path in missing):
            return
    raise UserError(
        f"{source.kind}: got no files in {folder} ({reason}), expected {files}. Put them there; {accepted}."
    )


def limited_rows(
    parts: dict[str, tuple[np.ndarray, np.ndarray]], classes: Sequence[str], limits: RowLimits, seed: int
) -> Rows:
    """Return the source's training and test rows as one table, with `limits` applied."""
    chosen = choose_rows({split: len(y) for split, (_, y) in parts.items()}, limits, seed)
    return join_splits({split: (x[chosen[split]], y[chosen[split]]) for split, (x, y) in parts.items()}, classes)


def choose_rows(counts: dict[str, int], limits: RowLimits, seed: int) -> dict[str, np.ndarray]:
    """Return the indices of the rows taken of each split: random, without repeats, in the source's order."""
    chosen = {}
    for split, count in counts.items():
        limit = getattr(limits, split)
        if limit is None:
            limit = count
        if limit > count:
            raise UserError(
                f"params.yaml: data.source.rows.{split}: got {limit}, expected at most the {count} {split} rows "
                "of the source. Lower it."
            )
        order = data_stream(seed, "source", "rows", split).permutation(count)
        chosen[split] = np.sort(order[:limit])
    return chosen


def join_splits(parts: dict[str, tuple[np.ndarray, np.ndarray]], classes: Sequence[str]) -> Rows:
    """Return training and test rows as one table; without test rows, the source has no splits."""
    split = np.concatenate([np.full(len(y), name) for name, (_, y) in parts.items()])
    return Rows(
        x=np.ascontiguousarray(np.concatenate([x for x, _ in parts.values()])),
        y=np.concatenate([y for _, y in parts.values()]).astype(np.int64),
        classes=list(classes),
        split=split if (split != "train").any() else None,
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(":.") if lines else type(error).__name__

"""Make data/ from its source: split it into silos, and record their version."""

from pathlib import Path
from typing import Any

from flows.core.config.data_settings import as_lines, settings_between
from flows.core.console import progress
from flows.project.project import Project
from flows.project.project_data import SOURCE_HASHES, exclusive_data_access
from silos.dataset import SPLITS
from silos.errors import UserError
from silos.privacy.owned_source import check_partition, find_store, prepare_store, reported_nothing
from silos.privacy.owner_file import OPENED, OWNER_FILE, check_copied, copy_policies, has_store
from silos.sources.source_params import AtPlaces, Npz, Table, is_public
from silos.sources.source_registry import content_hashes
from silos.storage import partition_store
from silos.storage.manifest import COMMON, Manifest
from silos.storage.places import described
from silos.versioning import dvc_files, git_commands
from silos.versioning.data_versions import partition_files
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.project_results import PartitionResult


def make(project: Project) -> PartitionResult:
    """Do the work of the flow as a function; raises a UserError while a run works on data/."""
    data = project.params.data
    folder = project.root / "data" / data.name
    notes: list[str] = []
    with exclusive_data_access(project.root, "`siloflow partition`"):
        notes += _prepare_store(project)
        with progress.saying_if_long(f"making data/{data.name}"):
            hashes = content_hashes(data.source, project.root)  # first: a file that changes meanwhile counts as changed
            manifest = _write(project, folder, notes)
        before = dvc_files.recorded_version(project.root)
        with progress.saying_if_long("recording data/"):
            after = dvc_files.record(project.root)
        ignored = _keep_from_git(project)  # after DVC, which lets git ignore data/
        path = project.root / SOURCE_HASHES
        write_json(path, {**(read_json(path) or {}), data.name: hashes})
    return {
        "name": data.name,
        "folder": f"data/{data.name}",
        "clients": len(manifest.clients),
        "rows": dict(zip(SPLITS, manifest.clients.rows.sum(axis=0, dtype=int).tolist(), strict=True)),
        "common": {split: rows for split, rows in manifest.common.items() if rows},
        "data_version": after,
        "changed": before != after,
        "uncommitted": git_commands.is_uncommitted(project.root, dvc_files.RECORD),
        "to_commit": [name for name in (dvc_files.RECORD, ".gitignore") if (project.root / name).exists()],
        "notes": [*notes, *ignored],
        "params_yaml": _lines_for_params(project),
    }


def _write(project: Project, folder: Path, notes: list[str]) -> Manifest:
    """Write the data from their source, or what places say that they hold."""
    data = project.params.data
    if not isinstance(data.source, AtPlaces):
        return partition_store.write(folder, data, project.root, notes.append)
    from tasks.remote.gather_parts import write_listing  # imported here: it needs torch

    manifest, policies, differ = partition_store.replace_folder(
        folder, lambda new: write_listing(project.root, new, data.name, data.recipe(), folder / COMMON)
    )
    copy_policies(find_store(project.root, data), policies)
    notes += [f"place {place}: {described(manifest, place)}, which stay there" for place in manifest.places]
    notes += differ
    return manifest


def _keep_from_git(project: Project) -> list[str]:
    """Let git ignore what silos keep private, and return notes: on lines that .gitignore got, and on a file with rows."""
    notes, path = [], getattr(project.params.data.source, "path", None)
    added = git_commands.ignore_folders(project.root, (dvc_files.DATA, "private", "runs"))
    if added:
        lines = " and ".join(f"/{name}/" for name in added)
        notes.append(f".gitignore: {lines} added, so that git commits nothing that silos keep private")
    if path is not None and not Path(path).is_absolute() and git_commands.is_offered(project.root, path):
        notes.append(
            f"{path}: git does not ignore it, so `git add --all` would commit its rows. If they are private, add /{path} to "
            ".gitignore."
        )
    return notes


def _prepare_store(project: Project) -> list[str]:
    """Make the silos' own store, unless they had data here before: then it is missing, and only their owner replaces it."""
    data = project.params.data
    store = find_store(project.root, data)
    check_partition(project.root, data)
    if isinstance(data.source, AtPlaces):  # each place has a store of its own
        check_copied(store)
        return []
    name, where = data.name, store.relative_to(project.root)
    if not has_store(store) and not reported_nothing(store):
        version = dvc_files.recorded_version(project.root)
        recorded = dvc_files.listed_files(project.root, version) if version else None
        if (project.root / "data" / name).exists() or partition_files(recorded or {}, name):
            return [
                f"{where}: got no {OWNER_FILE} or {OPENED}, expected both, because data/{name} was made here before. Its "
                "silos report nothing until you bring private/ back from a copy, or run `siloflow data ledger --new`."
            ]
    written = prepare_store(project.root, data)
    check_partition(project.root, data)
    if written is None or is_public(data.source):
        return []
    notes = [
        f"{written.relative_to(project.root)}: made. Only the owner of these silos changes it: it says how their rows are "
        "read, and what they may be asked"
    ]
    if isinstance(data.source, Table | Npz) and data.source.unit is None:
        notes.append(
            "no data.source.unit: ten rows may be one person's, and reports guard ten rows. Where rows name persons or "
            "machines, set it before the first report"
        )
    return notes


def _lines_for_params(project: Project) -> list[str]:
    """Return the lines that params.yaml needs to describe the data made with overrides; empty if none."""
    try:
        written = project.own_file.as_read.params.data
    except UserError:  # without the overrides it describes no data
        settings: dict[str, Any] | None = {f"data.{key}": value for key, value in project.params.data.recipe().items()}
    else:
        settings = settings_between(written, project.params.data.recipe())
    return as_lines(settings or {})

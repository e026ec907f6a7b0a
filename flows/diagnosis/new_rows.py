"""What silos report of the rows that they have got since an earlier version, as plain JSON and in sentences."""

from flows.core.config.diagnose_params import DiagnoseParams
from flows.diagnosis.query_clients import collect_answers
from flows.diagnosis.text.findings_page import refusal_sentences
from flows.diagnosis.text.phrases import joined, type_words
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.fomichev_distances import Readings
from models.diagnosis.guarded_tests import TYPES
from models.diagnosis.name_shift_types import GRADES
from models.metrics.task_metrics import format_signed
from silos.client_store import ClientStore
from silos.cohort import Silos
from tasks.diagnosis.report_new_rows import report_new_rows
from tasks.execution.task_runner import Runner
from tasks.messages.statistics_messages import NewRowsShift
from tasks.tracking.result_types.diagnosis_records import NewRowsRecord
from tasks.tracking.result_types.diagnosis_result import NewRows, VersionFacts, VersionReport

_MAX_FEATURES = 3  # that are named
_MAX_SILOS = 20  # with a sentence of their own


def compare_new_rows(
    runner: Runner, silos: Silos, before: Silos, private: ClientStore, query: Query, params: DiagnoseParams
) -> NewRows:
    """Let each silo compare its rows that are new since an earlier version with its earlier rows.

    Returns the `silos` that did, one record each, the reasons of those that `refused`, and `bytes`. Under noise no silo
    is queried, since each answer would cost as much as a version. Then one `reason` holds for all.
    """
    if params.noise is not None:
        return {"silos": [], "refused": {}, "bytes": 0, "reason": "new rows are not compared by themselves under noise"}
    readings = Readings(**params.paper.model_dump(), grid="federation")
    received, refused = collect_answers(
        runner,
        report_new_rows,
        silos,
        private=private,
        before=before,
        query=query,
        verdict=params.verdict,
        readings=readings,
    )
    reports = [message for message in received if isinstance(message, NewRowsShift)]
    records = [record for report in reports for record in _records(report, query.layout.names)]
    records.sort(key=lambda record: record["client"])
    sent = sum(report.bytes_up for report in reports)
    return {"silos": records, "refused": dict(sorted(refused.items())), "bytes": sent, "reason": None}


def _records(report: NewRowsShift, features: tuple[str, ...]) -> list[NewRowsRecord]:
    """Return a record for each client; grades, like features, are those of the types that differ."""
    records = list[NewRowsRecord]()
    columns = (
        report.rows,
        report.worth,
        report.types,
        report.grades,
        report.undetermined,
        report.features,
        report.means,
    )
    for client, rows, worth, types, grades, undetermined, named, means in zip(
        report.clients, *(column.tolist() for column in columns), strict=True
    ):
        found = [name for name, differs in zip(TYPES, types, strict=True) if differs]
        graded = {name: GRADES[grade] if grade >= 0 else None for name, grade in zip(TYPES, grades, strict=True)}
        records.append(
            {
                "client": client,
                "rows": rows,
                "worth": worth,
                "types": found,
                "grades": {name: graded[name] for name in found},
                "undetermined": undetermined[0],
                "features": {
                    name: mean if mean == mean else None
                    for name, is_named, mean in zip(features, named, means, strict=True)
                    if is_named
                },
            }
        )
    return records


def new_rows_sentences(report: VersionFacts) -> list[str]:
    """Return a sentence for each silo with new rows unlike its earlier ones, and for refusals."""
    new = report["new_rows"]
    differ = [record for record in new["silos"] if record["types"]]
    lines = [_sentence(record, report) for record in differ[:_MAX_SILOS]]
    if len(differ) > _MAX_SILOS:
        lines.append(f"New rows of {len(differ) - _MAX_SILOS} more silos differ; --json has them all.")
    return lines + refusal_sentences(new["refused"], "did not compare its new rows by themselves")


def _sentence(record: NewRowsRecord, report: VersionFacts) -> str:
    rows, earlier = record["rows"]
    words = type_words(report)
    differ = joined([words[name] for name in record["types"]])
    verb = "differs" if differ == "rule" else "differ"
    most = f", most in {joined(described_features(record))}" if record["features"] else ""
    return (
        f"{record['client']}: its {rows:,} new training rows, by themselves, are unlike its {earlier:,} earlier ones: "
        f"{differ} {verb}{most}."
    )


def described_features(record: NewRowsRecord) -> list[str]:
    """Return the named features of a record with the difference of their means, as in `age (+0.9 deviations)`."""
    found = list(record["features"].items())[:_MAX_FEATURES]
    return [name if mean is None else f"{name} ({format_signed(f'{mean:+.1f}')} deviations)" for name, mean in found]


def with_new_rows(report: VersionReport) -> VersionReport:
    """Add the sentences on new rows to those of a report on versions."""
    return {**report, "sentences": [*report["sentences"], *new_rows_sentences(report)]}

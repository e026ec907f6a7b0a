"""The report of a comparison: what came out, then generalisation, fairness, overhead, convergence, and every silo."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.experiment.comparison.comparison_text import (
    comparison_table,
    headline,
    mean_and_sd,
    not_complete,
    notes_after_training,
    sentences_after,
    tuned_sentence,
)
from flows.experiment.comparison.cost_text import bytes_text, cost_sentences, cost_table
from flows.experiment.comparison.trials import Plan
from flows.experiment.project import Project, experiment
from flows.reports.html_report import (
    FILE,
    Figure,
    Section,
    Table,
    figure_of,
    origin_section,
    repeated,
    write_report,
)
from models.metrics.task_metrics import TaskMetrics
from silos.dataset import some
from silos.errors import UserError
from tasks.tracking.cost_to_target import CostCurve
from tasks.tracking.json_io import read_json
from tasks.tracking.plots.curve_figures import comparison_panels, cost_panels

Curves = Mapping[str, Sequence[Sequence[tuple[int, float]]]]
"""A method's curves of (round, headline metric), one for each seed."""

_OTHERS = {"fresh": "fresh silos", "unseen": "unseen silos"}
_LAWS = {"fresh": "Fresh silos have a law that was trained on.", "unseen": "Unseen silos have a law that was not."}


def write_comparison_report(
    project: Project,
    plan: Plan,
    comparison: Mapping[str, Any],
    curves: Curves,
    cost_curves: Mapping[str, CostCurve | None],
) -> Path:
    """Write the report into the folder of the comparison."""
    name, quantity = comparison["experiment"], project.quantity
    sections = [
        *comparison_sections(comparison, quantity, curves, cost_curves, silo_facts(project)),
        diagnosis_section(project, comparison["data_version"]),
        origin_section(project, comparison["data_version"], _command(project, plan), _settings(project, comparison)),
    ]
    began = experiment(project, name).get("started", "")
    return write_report(
        project.runs / name / FILE,
        f"Comparison of methods on {project.params.data.name}",
        f"{name}: {', '.join(plan.methods)}; seed{'s' * (len(plan.seeds) > 1)} "
        f"{', '.join(map(str, plan.seeds))}; begun {began[:4]}-{began[4:6]}-{began[6:8]}.",
        sections,
    )


def silo_facts(project: Project) -> dict[str, dict[str, Any]]:
    """Map each scored client to its domain and its numbers of training and test rows."""
    silos, common = project.scored, project.scored.common("test")
    train, test = (silos.rows(split) for split in ("train", "test"))
    return {
        client: {"rows": rows, "test_rows": common or test[client], "domain": silos.domain(client)}
        for client, rows in train.items()
    }


def comparison_sections(
    comparison: Mapping[str, Any],
    quantity: TaskMetrics,
    curves: Curves,
    cost_curves: Mapping[str, CostCurve | None],
    silos: Mapping[str, Mapping[str, Any]],
) -> list[Section]:
    """Return the sections that follow from a comparison's JSON alone; `silos` has rows and domain of each client."""
    by_round, by_client, differences = comparison_panels(comparison, curves, quantity)
    clients = clients_of(comparison, quantity)
    title, *rows = comparison_table(comparison, quantity, seconds=True)
    seeds = max((row["seeds"] for row in comparison["table"]), default=0)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    last = [f"{row['method']} {quantity.number(row[quantity.headline])}" for row in comparison["table"]]
    paired = [_sentence_of(pair) for pair in comparison["paired"]]
    interval = [Figure(differences, "Difference to the reference, with its 95 % interval", "; ".join(paired))]
    missing = not_complete(comparison)
    return [
        Section(
            "What came out",
            [
                *([f"{missing[:1].upper()}{missing[1:]}."] if missing else []),
                headline(comparison["paired"]),
                *paired,
                *sentences_after(comparison),
                *notes_after_training(comparison),
            ],
            figures=interval if paired else [],
            tables=[Table(f"Methods: {spread}", title, rows)],
        ),
        _generalisation(comparison, quantity),
        _fairness(comparison, quantity, Figure(by_client, _EACH_CLIENT, _range_over_clients(clients, quantity))),
        _overhead(comparison, quantity, cost_curves),
        Section(
            "Convergence",
            figures=[
                Figure(
                    by_round,
                    f"{quantity.title}, by round: mean over seeds, and each seed thin; dotted: the constant baseline",
                    f"{quantity.title} by round. At the reported round: {', '.join(last)}",
                )
            ],
        ),
        _each_silo(comparison, quantity, clients, silos),
    ]


_EACH_CLIENT = "Each silo on its test rows: mean over seeds; the line is over all silos"


def _sentence_of(pair: Mapping[str, Any]) -> str:
    return str((pair.get("corrected") or pair)["sentence"])


def clients_of(comparison: Mapping[str, Any], quantity: TaskMetrics) -> list[dict[str, Any]]:
    """Return `clients` of a comparison: of each client its role and, by method, its metric as a mean over seeds."""
    if "clients" in comparison:
        return list(comparison["clients"])
    found: dict[str, dict[str, Any]] = {}
    for run in comparison["runs"]:
        for row in run["metrics"][f"{quantity.name}/by_client"]:
            client = found.setdefault(row["client"], {"client": row["client"], "role": row["role"], "metrics": {}})
            value = row[quantity.name]
            if value is not None and math.isfinite(value):
                client["metrics"].setdefault(run["method"], []).append(value)
    for client in found.values():
        client["metrics"] = {method: statistics.fmean(of) for method, of in client["metrics"].items()}
    return list(found.values())


def _gain_sentences(comparison: Mapping[str, Any]) -> list[str]:
    gains = comparison.get("gains") or {}
    return [record["sentence"] for record in gains.get("methods", {}).values() if record.get("sentence")]


def _generalisation(comparison: Mapping[str, Any], quantity: TaskMetrics) -> Section:
    """Compare silos that trained with those that did not."""
    names = {role: f"{role}/{quantity.headline}" for role in _OTHERS}
    roles = [role for role, name in names.items() if any(row.get(name) is not None for row in comparison["table"])]
    title = "Generalisation to other silos"
    if not roles:
        return Section(
            title,
            [
                "Every scored silo took part in training, so these scores are about new rows of the same silos. "
                "The steps `fresh` and `hold_out` of data.scheme keep silos out of training, to score other silos too."
            ],
        )
    rows = [
        [
            row["method"],
            mean_and_sd(row, quantity.headline, quantity),
            *(
                mean_and_sd(row, names[role], quantity) if row.get(names[role]) is not None else "no model"
                for role in roles
            ),
        ]
        for row in comparison["table"]
    ]
    sentence = f"Some silos took no part in training. {' '.join(_LAWS[role] for role in roles)}"
    titles = ["method", "trained silos", *(_OTHERS[role] for role in roles)]
    return Section(title, [sentence], tables=[Table(f"{quantity.title}, by role", titles, rows)])


def _fairness(comparison: Mapping[str, Any], quantity: TaskMetrics, figure: Figure) -> Section:
    gains, title = comparison.get("gains") or {}, "Fairness: who gains and who loses"
    if not gains.get("methods"):
        return Section(title, list(filter(None, [gains.get("why_not")])), [figure])
    rows = [
        [
            method,
            f"{record.get('better', '-')} better, {record.get('worse', '-')} worse",
            *(some(record.get(key) or ["none"]) for key in ("certain_better", "certain_worse")),
            _signed(record.get("worst_tenth"), quantity),
            str(record.get("worst_client") or "-"),
        ]
        for method, record in gains["methods"].items()
    ]
    titles = ["method", "silos", "certainly better", "certainly worse", "worst tenth", "worst silo"]
    table = Table(f"Each silo against {gains['against']}, on its own test rows", titles, rows)
    return Section(title, _gain_sentences(comparison), [figure], [table])


def _signed(value: float | None, quantity: TaskMetrics) -> str:
    return "-" if value is None else f"{quantity.axis(value):+.3g}".replace("-", "−")


def _range_over_clients(clients: Sequence[Mapping[str, Any]], quantity: TaskMetrics) -> str:
    """Describe the figure of all clients: the lowest and highest metric of each method."""
    by_method: dict[str, list[float]] = {}
    for client in clients:
        for method, value in client["metrics"].items():
            if value is not None:
                by_method.setdefault(method, []).append(value)
    ranges = [f"{m} {quantity.number(min(v))} to {quantity.number(max(v))}" for m, v in by_method.items()]
    return f"Test {quantity.name} of each silo, lowest to highest: {'; '.join(ranges)}"


def _overhead(
    comparison: Mapping[str, Any], quantity: TaskMetrics, cost_curves: Mapping[str, CostCurve | None]
) -> Section:
    rows = [
        [row["method"], bytes_text(row["bytes/up"]), bytes_text(row["bytes/down"]), f"{row['seconds']:.1f}"]
        for row in comparison["table"]
    ]
    titles = ["method", "sent to the server", "sent to silos", "seconds"]
    tables = [Table("What a run sends, all silos together, and how long it takes: means over seeds", titles, rows)]
    costs, figures = comparison.get("cost") or {}, []
    if costs:
        titles, *rows = cost_table(costs)
        tables.append(Table("Cost until the target is reached", titles, rows))
    if any(curve is not None for curve in cost_curves.values()):
        reached = [f"{method} {bytes_text(costs.get(method, {}).get('bytes'))}" for method in cost_curves]
        captions = [f"{quantity.title}, by {what}; dashed: the target" for what in ("bytes sent", "seconds")]
        alternatives = (
            f"{captions[0]}. Until the target: {', '.join(reached)}",
            f"{captions[1]}. The table below has the seconds until the target.",
        )
        panels = cost_panels(cost_curves, costs, quantity)
        figures = [Figure(*of) for of in zip(panels, captions, alternatives, strict=True)]
    return Section("Overhead: bytes and seconds", cost_sentences(costs, quantity), figures, tables)


def _each_silo(
    comparison: Mapping[str, Any],
    quantity: TaskMetrics,
    clients: Sequence[Mapping[str, Any]],
    silos: Mapping[str, Mapping[str, Any]],
) -> Section:
    """List every silo; of many, those that certainly lose or gain come first, then those with the worst score."""
    methods, gains = [row["method"] for row in comparison["table"]], comparison.get("gains") or {}
    by_method = {method: _certain(record) for method, record in gains.get("methods", {}).items()}
    certain = set[str]().union(*by_method.values())

    def interest(client: Mapping[str, Any]) -> tuple[bool, float]:
        scores = [quantity.gain(value) for value in client["metrics"].values() if value is not None]
        return client["client"] not in certain, min(scores, default=math.inf)

    facts = [{**silos.get(client["client"], {}), **client} for client in sorted(clients, key=interest)]
    columns = {"rows": "training rows", "test_rows": "test rows", "domain": "law"}
    columns = {name: title for name, title in columns.items() if any(client.get(name) for client in facts)}
    if any(client["role"] != "federated" for client in facts):
        columns = {"role": "role", **columns}
    rows = [
        [
            client["client"],
            *(_plain(client.get(name)) for name in columns),
            *(_metric_cell(client, method, gains, by_method.get(method, ()), quantity) for method in methods),
        ]
        for client in facts
    ]
    order = "certain gains and losses first, then the worst scores" if certain else "the worst scores first"
    caption = f"Test {quantity.name} of each silo, mean over seeds; {order}"
    table = Table.long(caption, ["silo", *columns.values(), *methods], rows, "comparison.json")
    against = gains.get("against")
    legend = f"Signed: difference to {against}, {quantity.difference_axis}. *: certain, corrected for all silos."
    return Section("Each silo", [legend] if gains.get("methods") else [], tables=[table])


def _certain(record: Mapping[str, Any]) -> set[str]:
    """Return the silos that certainly gain or lose under a method."""
    return {name for key in ("certain_worse", "certain_better") for name in record.get(key) or ()}


def _metric_cell(
    client: Mapping[str, Any], method: str, gains: Mapping[str, Any], certain: Collection[str], quantity: TaskMetrics
) -> str:
    """Return the metric, and the difference to training alone if it is known: `0.912 +2.1*`."""
    name, value = client["client"], quantity.number(client["metrics"].get(method))
    records = gains.get("methods", {}).get(method, {}).get("clients", {})
    difference = records.get(name, {}).get("difference")
    return value if difference is None else f"{value} {_signed(difference, quantity)}{'*' * (name in certain)}"


def _plain(value: Any) -> str:
    if value in (None, ""):
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def diagnosis_section(project: Project, version: str) -> Section:
    """Show the newest diagnosis of this data version, or how to make one."""
    title = "How the silos differ"
    folder = _newest_diagnosis(project, version)
    report = _report_of(folder) if folder else None
    if folder is None or report is None:
        return Section(title, ["No diagnosis of this data version was made yet: `siloflow diagnose` makes one."])
    figures = figure_of(folder / "pairs.png", "How much each pair of silos differs", " ".join(report["sentences"]))
    source = f"`runs/{folder.name}` has the diagnosis in full."
    return Section(title, [*report["sentences"], source], figures)


def _report_of(folder: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] | None = read_json(folder / "report.json", keys=("sentences",))
    except UserError:  # damaged: a finished comparison does not fail for it
        return None
    return report


def _newest_diagnosis(project: Project, version: str) -> Path | None:
    """Return the folder of the last finished diagnosis of all silos with this data version."""
    found = []
    for path in project.runs.glob("diagnose-*/report.json"):
        about = experiment(project, path.parent.name)
        if about["kind"] == "diagnose" and about.get("data_version") == version and "since" not in about:
            found.append((about.get("started", ""), path.parent))
    return max(found, default=(None, None))[1]


def _command(project: Project, plan: Plan) -> list[str]:
    seeds = ",".join(map(str, plan.seeds))
    return repeated("compare", project, *plan.methods, "--seeds", seeds, "--reference", plan.reference)


def _settings(project: Project, comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    training, model = project.params.training, project.params.model
    tuned = [(f"tuned, {of['method']}", tuned_sentence(of)) for of in comparison["tuning"]]
    text = (
        f"{training.rounds} rounds of {training.epochs} local epochs, batches of {training.batch}, network {model.kind}"
    )
    return [("training", text), *tuned]

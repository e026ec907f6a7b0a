"""The report of a comparison: what came out, then generalisation, fairness, overhead, convergence, and every silo."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.experiments.comparison.comparison_text import (
    bytes_text,
    client_cell,
    comparison_table,
    cost_sentences,
    cost_table,
    gains_table,
    headline,
    legend,
    mean_and_sd,
    not_complete,
    notes_after_training,
    sentences_after,
    sentences_first,
    tuned_sentence,
)
from flows.experiments.comparison.run_trials import Plan
from flows.project.project import Project
from flows.project.run_sets import experiment
from flows.results.reports.html_report import (
    FILE,
    Figure,
    Section,
    Table,
    figure_of,
    origin_section,
    repeated,
    write_report,
)
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.errors import UserError
from tasks.tracking.cost_to_target import CostCurve
from tasks.tracking.json_io import read_json
from tasks.tracking.plots.curve_figures import comparison_panels, cost_panels
from tasks.tracking.result_types.comparison_result import ComparedClient, ComparisonResult
from tasks.tracking.result_types.diagnosis_result import SiloResult
from tasks.tracking.result_types.run_files import ExperimentRecord

Curves = Mapping[str, Sequence[Sequence[tuple[int, float]]]]
"""A method's curves of (round, headline metric), one for each seed."""

_OTHERS = {"fresh": "fresh silos", "unseen": "unseen silos"}
_LAWS = {"fresh": "Fresh silos have a law that was trained on.", "unseen": "Unseen silos have a law that was not."}


def write_comparison_report(
    project: Project,
    plan: Plan,
    comparison: ComparisonResult,
    curves: Curves,
    cost_curves: Mapping[str, CostCurve | None],
) -> Path:
    """Write the report into the folder of the comparison."""
    name, quantity = comparison["experiment"], project.quantity
    about = experiment(project, name)
    sections = [
        *comparison_sections(comparison, quantity, curves, cost_curves),
        diagnosis_section(project, comparison["data_version"]),
        origin_section(
            project, comparison["data_version"], _command(project, plan, about), _settings(project, comparison)
        ),
    ]
    began = about.get("started", "")
    return write_report(
        project.store.runs / name / FILE,
        f"Comparison of methods on {project.params.data.name}",
        f"{name}: {', '.join(plan.methods)}; seed{'s' * (len(plan.seeds) > 1)} "
        f"{', '.join(map(str, plan.seeds))}; begun {began[:4]}-{began[4:6]}-{began[6:8]}.",
        sections,
    )


def comparison_sections(
    comparison: ComparisonResult,
    quantity: TaskMetrics,
    curves: Curves,
    cost_curves: Mapping[str, CostCurve | None],
) -> list[Section]:
    """Return the sections that follow from a comparison's JSON and its curves."""
    by_round, by_client, differences = comparison_panels(comparison, curves, quantity)
    title, *rows = comparison_table(comparison, quantity, seconds=True)
    seeds = max((int(metric_value(row, "seeds") or 0) for row in comparison["table"]), default=0)
    runs = "runs on all partitions" if comparison.get("partitions") else "seeds"
    spread = f"mean ± standard deviation over {seeds} {runs}" if seeds > 1 else "one seed"
    last = [f"{row['method']} {quantity.number(metric_value(row, quantity.headline))}" for row in comparison["table"]]
    paired = [pair["sentence"] for pair in comparison["paired"]]
    interval = [Figure(differences, "Difference to the reference, with its 95 % interval", "; ".join(paired))]
    missing = not_complete(comparison)
    return [
        # first and with its interval: a reader who stops here has the answer
        Section(
            "What came out",
            [
                *([f"{missing[:1].upper()}{missing[1:]}."] if missing else []),
                *comparison.get("open_faults", ()),
                *sentences_first(comparison),
                headline(comparison["paired"]),
                *paired,
                *sentences_after(comparison),
                *notes_after_training(comparison["notes"]),
            ],
            figures=interval if paired else [],
            tables=[Table(f"Methods: {spread}", title, rows)],
        ),
        _generalisation(comparison, quantity),
        _fairness(
            comparison, quantity, Figure(by_client, _EACH_CLIENT, _range_over_clients(comparison["clients"], quantity))
        ),
        _overhead(comparison, quantity, cost_curves),
        Section(
            "Convergence",
            figures=[
                Figure(
                    by_round,
                    f"{quantity.title}, by round: mean over seeds, and each seed thin; dotted: the constant baseline, "
                    "if it is in range",
                    f"{quantity.title} by round. At the reported round: {', '.join(last)}",
                )
            ],
        ),
        _each_silo(comparison, quantity),
    ]


_EACH_CLIENT = "Each silo on its test rows: mean over seeds; the line is over all silos"


def _generalisation(comparison: ComparisonResult, quantity: TaskMetrics) -> Section:
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
            str(row["method"]),
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


def _fairness(comparison: ComparisonResult, quantity: TaskMetrics, figure: Figure) -> Section:
    gains, title = comparison["gains"], "Fairness: who gains and who loses"
    methods = gains["methods"]
    if not methods:
        return Section(title, list(filter(None, [gains.get("why_not")])), [figure])
    titles, *rows = gains_table(list(methods), gains, quantity)
    where = f" of {gains['of']}" if gains.get("of") else ""
    table = Table(f"Each silo against {gains['against']}, on its own test rows{where}", titles, rows)
    return Section(title, [record["sentence"] for record in methods.values()], [figure], [table])


def _range_over_clients(clients: Sequence[ComparedClient], quantity: TaskMetrics) -> str:
    """Describe the figure of all clients: the lowest and highest metric of each method."""
    by_method: dict[str, list[float]] = {}
    for client in clients:
        for method, value in client["metrics"].items():
            if value is not None:
                by_method.setdefault(method, []).append(value)
    ranges = [f"{m} {quantity.number(min(v))} to {quantity.number(max(v))}" for m, v in by_method.items()]
    return f"Test {quantity.label} of each silo, lowest to highest: {'; '.join(ranges)}"


def _overhead(
    comparison: ComparisonResult, quantity: TaskMetrics, cost_curves: Mapping[str, CostCurve | None]
) -> Section:
    rows = [
        [
            str(row["method"]),
            *(bytes_text(metric_value(row, name)) for name in ("bytes/up", "bytes/down")),
            f"{row['seconds']:.1f}",
        ]
        for row in comparison["table"]
    ]
    titles = ["method", "sent to the server", "sent to silos", "seconds"]
    tables = [Table("What a run sends, all silos together, and how long it takes: means over seeds", titles, rows)]
    costs, figures = comparison.get("cost") or {}, list[Figure]()
    if costs:
        titles, *rows = cost_table(costs)
        tables.append(Table("Cost until the target is reached", titles, rows))
    if any(curve is not None for curve in cost_curves.values()):
        spent = {method: bytes_text(costs[method]["bytes"] if method in costs else None) for method in cost_curves}
        reached = [f"{method} {amount}" for method, amount in spent.items()]
        captions = [f"{quantity.title}, by {what}; dashed: the target" for what in ("bytes sent", "seconds")]
        alternatives = (
            f"{captions[0]}. Until the target: {', '.join(reached)}",
            f"{captions[1]}. The table below has the seconds until the target.",
        )
        panels = cost_panels(cost_curves, costs, quantity)
        figures = [Figure(*of) for of in zip(panels, captions, alternatives, strict=True)]
    return Section("Overhead: bytes and seconds", cost_sentences(costs, quantity), figures, tables)


def _each_silo(comparison: ComparisonResult, quantity: TaskMetrics) -> Section:
    """List every silo; of many, those that certainly lose or gain come first, then those with the worst score."""
    methods, gains = [str(row["method"]) for row in comparison["table"]], comparison["gains"]
    certain = {
        name for record in gains["methods"].values() for name in (*record["certain_worse"], *record["certain_better"])
    }

    def interest(client: ComparedClient) -> tuple[bool, float]:
        scores = [quantity.gain(value) for value in client["metrics"].values() if value is not None]
        return client["client"] not in certain, min(scores, default=math.inf)

    clients = sorted(comparison["clients"], key=interest)
    columns: list[tuple[str, Sequence[str], bool]] = [
        ("role", [client["role"] for client in clients], any(c["role"] != "federated" for c in clients)),
        ("training rows", [f"{client['rows']:,}" for client in clients], any(c["rows"] for c in clients)),
        ("test rows", [f"{client['test_rows']:,}" for client in clients], any(c["test_rows"] for c in clients)),
        ("law", [client["domain"] or "-" for client in clients], any(c["domain"] for c in clients)),
    ]
    shown = {title: cells for title, cells, differs in columns if differs}
    rows = [
        [
            client["client"],
            *(cells[at] for cells in shown.values()),
            *(client_cell(client, method, gains, quantity) for method in methods),
        ]
        for at, client in enumerate(clients)
    ]
    order = "certain gains and losses first, then the worst scores" if certain else "the worst scores first"
    caption = f"Test {quantity.label} of each silo, mean over seeds; {order}"
    table = Table.long(caption, ["silo", *shown, *methods], rows, "comparison.json")
    return Section("Each silo", [f"{legend(gains, quantity)}."] if gains["methods"] else [], tables=[table])


def diagnosis_section(project: Project, version: str) -> Section:
    """Show the newest diagnosis of this data version, or how to make one."""
    title = "How the silos differ"
    newest = newest_diagnosis(project, version)
    if newest is None:
        return Section(title, ["No diagnosis of this data version was made yet: `siloflow diagnose` makes one."])
    folder, report = newest
    figures = figure_of(folder / "pairs.png", "How much each pair of silos differs", " ".join(report["sentences"]))
    source = f"`runs/{folder.name}` has the diagnosis in full."
    return Section(title, [*report["sentences"], source], figures)


def newest_diagnosis(project: Project, version: str) -> tuple[Path, SiloResult] | None:
    """Return folder and report of the last diagnosis of all silos with this data version; None without a whole one."""
    found = []
    for path in project.store.runs.glob("diagnose-*/report.json"):
        about = experiment(project, path.parent.name)
        if about["kind"] == "diagnose" and about.get("data_version") == version and "since" not in about:
            found.append((about.get("started", ""), path.parent))
    if not found:
        return None
    folder = max(found)[1]
    try:
        return folder, read_json(folder / "report.json", keys=("sentences",))
    except UserError:  # damaged: a finished comparison does not fail for it
        return None


def _command(project: Project, plan: Plan, about: ExperimentRecord) -> list[str]:
    if about["kind"] == "advise":  # each method has settings of its own, which `compare` does not take
        return repeated("advise", project, *about["methods"], "--minutes", f"{about['minutes']:g}")
    seeds = ",".join(map(str, plan.seeds))
    return repeated("compare", project, *plan.methods, "--seeds", seeds, "--reference", plan.reference)


def _settings(project: Project, comparison: ComparisonResult) -> list[tuple[str, str]]:
    training, model = project.params.training, project.params.model
    tuned = [(f"tuned, {of['method']}", tuned_sentence(of)) for of in comparison["tuning"]]
    text = (
        f"{training.rounds} rounds of {training.epochs} local epochs, batches of {training.batch}, network {model.kind}"
    )
    return [("training", text), *tuned]

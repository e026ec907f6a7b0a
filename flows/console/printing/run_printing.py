"""What is printed of runs, comparisons and methods."""

from typing import Any

from flows.console.printing.literal_text import PlainConsole, text_table
from models.assessment.quantities import QUANTITIES, Quantity

LOOK_CLOSER = "siloflow ui opens MLflow's and Prefect's pages"
"""Where there is more than is printed."""


def run(result: dict[str, Any], console: PlainConsole) -> None:
    """Metrics of one run."""
    metrics, quantity = result["metrics"], QUANTITIES[result["task"]]
    console.print(
        f"{result['method']} seed {result['seed']}, round {result['reported_round']} of {result['rounds']}, "
        f"{result['model']} model"
    )
    if quantity.headline in metrics:
        for line in f"test {quantity.as_text(metrics)}".split("\n"):
            console.print(line)
    for line in _said_at_the_end(result):
        console.print(line)
    console.print(f"data version  {result['data_version']}")
    console.print(f"weights       {result['weights_sha256'][:32]}…")
    console.print(f"files         {result['folder']}")
    console.print(f"look closer   {LOOK_CLOSER}")


def compare(answer: dict[str, Any], console: PlainConsole) -> None:
    """The table, the sentences, and where to look."""
    quantity = QUANTITIES[answer["task"]]
    table = text_table("method", "model tested", *quantity.columns.values(), "seconds")
    for row in answer["table"]:
        table.add_row(
            row["method"],
            row["model"],
            *(spread(row, name, quantity) for name in quantity.columns),
            f"{row['seconds']:.1f}",
        )
    console.print(table)
    console.print(_heading(len({r["seed"] for r in answer["runs"]}), bool(answer["paired"])))
    for p in answer["paired"]:
        console.print(f"  {p['sentence']}")
    for line in _said_at_the_end(answer):
        console.print(line)
    if answer["tuning"]:
        console.print(f"settings, chosen on validation rows of seed {answer['tuning'][0]['seed']}:")
    for one in answer["tuning"]:
        console.print(f"  {one['method']}: {tuned_sentence(one)}")
    for failure in answer["failed"]:
        console.print(f"{failure['method']} seed {failure['seed']} failed: {failure['error']}")
    console.print()
    console.print(f"data version  {answer['data_version']}")
    console.print(f"figure        {answer['figure']}")
    console.print(f"experiment    {answer['experiment']}")
    console.print(f"look closer   {LOOK_CLOSER}")


def _heading(seeds: int, paired: bool) -> str:
    """What the numbers of the table are, and the intervals of the sentences below it, where there are any."""
    if not paired:
        return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if seeds > 1:
        return f"mean ± standard deviation over {seeds} seeds; 95 % intervals over seeds and rows:"
    return "one seed: 95 % intervals over rows, which say nothing of other seeds:"


def headline(paired: list[dict[str, Any]]) -> str:
    """The comparison in one line: who is better than the reference, who is worse, who cannot be told from it."""
    if not paired:
        return "Nothing to compare."
    verdicts: dict[str, list[str]] = {"better": [], "worse": [], "not distinguishable": []}
    for p in paired:
        real = "better" if p["better"] == p["method"] else "worse"
        verdicts[real if p["better"] else "not distinguishable"].append(p["method"])
    said = [f"{', '.join(methods)} {verdict}" for verdict, methods in verdicts.items() if methods]
    return f"Against {paired[0]['reference']}: {'; '.join(said)}."


def tuned_sentence(one: dict[str, Any]) -> str:
    """What a method was tuned to, of how many settings, and where something better may lie beyond them."""
    chosen = ", ".join(_short(setting) for setting in one["settings"])
    if one["score"] is None:
        return f"{chosen}; the first, since none of {one['tried']} gave a finite score"
    edge = ", ".join(_short(key) for key in one["at_edge"])
    return f"{chosen}; the best of {one['tried']}" + (f", at the edge of {edge}" if edge else "")


def _said_at_the_end(answer: dict[str, Any]) -> list[str]:
    """What nobody could say before, of several runs with the methods that it is true of; earlier versions said nothing."""
    return [
        f"{', '.join(note['methods'])}: {note['sentence']}"
        if "methods" in note and note["about"] == "training"
        else note["sentence"]
        for note in answer.get("notes", ())
        if note["about"] in ("training", "evaluation")
    ]


def _short(setting: str) -> str:
    """`learning_rate 0.1` of `training.optimiser.learning_rate=0.1`."""
    key, _, value = setting.partition("=")
    return f"{key.rpartition('.')[2]} {value}".strip()


def spread(row: dict[str, Any], name: str, quantity: Quantity) -> str:
    """Mean ± standard deviation over seeds; one seed has none."""
    mean = quantity.number(row[name])
    return f"{mean} ± {quantity.number(row[name + '/sd'], 2)}" if row["seeds"] > 1 and mean != "-" else mean

"""Print runs, comparisons, earlier results and what `siloflow clean` may delete."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flows.console.safe_text import PlainConsole, text_table
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from silos.dataset import some
from silos.io.free_memory import size

LOOK_CLOSER = "siloflow ui opens MLflow's and Prefect's pages"
"""Where there is more than is printed."""


def run(result: dict[str, Any], console: PlainConsole) -> None:
    """Metrics of one run."""
    metrics, quantity = result["metrics"], TASK_METRICS[result["task"]]
    console.print(
        f"{result['method']} seed {result['seed']}, round {result['reported_round']} of {result['rounds']}, "
        f"{result['model']} model"
    )
    if quantity.headline in metrics:
        for line in f"test {quantity.as_text(metrics)}".split("\n"):
            console.print(line)
    baseline = result.get("baseline")  # runs of earlier versions have none
    if baseline:
        scores = [
            f"{title} {text}"
            for title, text in zip(quantity.columns.values(), _scores(baseline, quantity), strict=True)
        ]
        shown = ", ".join(text for text in scores if not text.endswith(" -"))
        console.print(f"{baseline['name']}, the {baseline['kind']}: {shown}")
    for line in _said_at_the_end(result):
        console.print(line)
    console.print(f"data version  {result['data_version']}")
    console.print(f"weights       {result['weights_sha256'][:32]}…")
    console.print(f"files         {result['folder']}")
    console.print(f"look closer   {LOOK_CLOSER}")


def compare(answer: dict[str, Any], console: PlainConsole) -> None:
    """The table, the sentences, and where to look."""
    quantity, counts = TASK_METRICS[answer["task"]], seeds_finished(answer)
    titles, *rows = comparison_table(answer, quantity, seconds=True)
    table = text_table(*titles)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    seeds = {r["seed"] for r in answer["runs"]}
    console.print(_heading(len(seeds), bool(answer["paired"]), bool(counts)))
    for p in answer["paired"]:
        over = f" (seed{'s' * (len(p['seeds']) > 1)} {', '.join(map(str, p['seeds']))})" if counts else ""
        console.print(f"  {p['sentence']}{over}")
    for sentence in sentences_after(answer):
        console.print(sentence)
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


def _heading(seeds: int, paired: bool, unequal: bool) -> str:
    """What the numbers of the table are, and the intervals of the sentences below it, where there are any.

    `unequal`: not every method finished with all seeds.
    """
    over = "the seeds that each method finished with" if unequal else f"{seeds} seeds"
    if not paired:
        return f"mean ± standard deviation over {over}" if seeds > 1 else "one seed"
    if seeds > 1:
        return f"mean ± standard deviation over {over}; 95 % intervals over seeds and rows:"
    return "one seed: 95 % intervals over rows, which say nothing of other seeds:"


def comparison_table(answer: Mapping[str, Any], quantity: TaskMetrics, seconds: bool = False) -> list[list[str]]:
    """Return titles, then a row for each method, then one for the answer that takes no inputs.

    The number of seeds is in it where not all methods finished with the same. Comparisons of earlier versions have no such
    answer.
    """
    counts, baseline = seeds_finished(answer), answer.get("baseline")
    rows = {
        row["method"]: [row["model"], *(spread(row, n, quantity) for n in quantity.columns)] for row in answer["table"]
    }
    took = {row["method"]: f"{row['seconds']:.1f}" for row in answer["table"]}
    nothing = ["-"] * (1 + len(quantity.columns))
    lines = [[method, *rows.get(method, nothing), took.get(method, "-")] for method in {**rows, **counts}]
    if baseline:
        lines.append([baseline["name"], "constant", *_scores(baseline, quantity), "-"])
    titles = ["method", "model tested", *quantity.columns.values(), "seconds"]
    table = [titles, *lines] if seconds else [line[:-1] for line in (titles, *lines)]
    if counts:
        table = [
            [*line, count]
            for line, count in zip(table, ["seeds", *(counts.get(m, "-") for m, *_ in lines)], strict=True)
        ]
    return table


def seeds_finished(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return `2 of 3` for each method, also for one without any; nothing where every run has finished."""
    if not answer["failed"]:
        return {}
    runs = [(run["method"], run["seed"]) for run in (*answer["runs"], *answer["failed"])]
    asked = len({seed for _, seed in runs})
    finished = Counter(run["method"] for run in answer["runs"])
    return {method: f"{finished[method]} of {asked}" for method in dict.fromkeys(method for method, _ in runs)}


def not_complete(answer: Mapping[str, Any]) -> str:
    """Return how many runs of a comparison failed, and which; an empty text if none did."""
    failed = [f"{run['method']} seed {run['seed']}" for run in answer["failed"]]
    if not failed:
        return ""
    return f"not complete: {len(failed)} of {len(failed) + len(answer['runs'])} runs failed ({some(failed)})"


def sentences_after(answer: Mapping[str, Any]) -> list[str]:
    """Return what restricts the differences: no method is better than the baseline, or runs are missing."""
    baseline, missing = answer.get("baseline") or {}, not_complete(answer)
    again = [f"The comparison is {missing}; the same command with --resume tries them again."] if missing else []
    return [*filter(None, [baseline.get("sentence")]), *again]


def _scores(baseline: Mapping[str, Any], quantity: TaskMetrics) -> list[str]:
    return [quantity.number(baseline["metrics"].get(name)) for name in quantity.columns]


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


def spread(row: dict[str, Any], name: str, quantity: TaskMetrics) -> str:
    """Mean ± standard deviation over seeds; one seed has none."""
    mean = quantity.number(row[name])
    return f"{mean} ± {quantity.number(row[name + '/sd'], 2)}" if row["seeds"] > 1 and mean != "-" else mean


_MOST = 40  # of the newest
_PLACES = 3  # of a kind


def results(answer: dict[str, Any], console: PlainConsole) -> None:
    """Two lines each: the name with its time, state and number, and what it is."""
    if not answer["results"]:
        console.print("nothing has been run here; `siloflow compare` does.")
        return
    for one in answer["results"][:_MOST]:
        told = ", ".join(filter(None, (one["state"], one["headline"])))
        console.print(f"{one['name']}  {told}", style="bold" if one["state"] == "finished" else None)
        on = f"; data {one['data_version']}" if one["data_version"] else ""
        console.print(f"  {one['started'][:16].replace('T', ' ')} UTC  {one['what']}{on}")
    left = len(answer["results"]) - _MOST
    if left > 0:
        console.print(f"… and {left} more; --json has them all")
    console.print("`siloflow results NAME` prints one again, `siloflow results A B` two comparisons beside each other.")


def beside(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a method and side, then the differences, then what differs in params."""
    quantity = TASK_METRICS[answer["task"]]
    table = text_table("method", "", *quantity.columns.values())
    for row in answer["table"]:
        for at, side in enumerate(("first", "second")):
            numbers = (spread(row[side], name, quantity) for name in quantity.columns)
            table.add_row(row["method"] if at == 0 else "", side, *numbers)
    console.print(f"first   {answer['first']}")
    console.print(f"second  {answer['second']}")
    console.print()
    if answer["table"]:
        console.print(table)
    else:
        console.print("they have no method in common")
    for side, methods in zip(("first", "second"), answer["only"], strict=True):
        if methods:
            console.print(f"only in the {side}: {', '.join(methods)}")
    for pair in answer["paired"]:
        if "sentence" in pair:
            seeds = ", ".join(map(str, pair["seeds"]))
            console.print(f"  {pair['method']}: {pair['sentence']} (seed{'s' * (len(pair['seeds']) > 1)} {seeds})")
        else:
            console.print(f"  {pair['method']}: not paired, since {pair['why_not'].rstrip('.')}")
    console.print()
    old, new = answer["data_versions"]
    console.print(f"data version  {old}" if old == new else f"data version  {old} → {new}")
    console.print(f"params        {'differ in' if answer['params'] else 'the same'}")
    of_all = {row["method"] for row in answer["table"]}
    for line in answer["params"]:
        whose = "" if of_all == {*line["methods"]} else f"  ({', '.join(line['methods'])})"
        console.print(f"  {line['difference']}{whose}")


def clean(answer: dict[str, Any], console: PlainConsole) -> None:
    """A kind and its size, what is lost without it, and some of its places."""
    if not answer["kinds"]:
        console.print("there is nothing to delete.")
        return
    for kind in answer["kinds"]:
        console.print(f"{kind['kind']}  {size(kind['bytes'])}  {'deleted' if kind['deleted'] else 'there'}")
        console.print(f"  lost without them: {kind['lost']}")
        for place in kind["places"][:_PLACES]:
            console.print(f"  {place}" + ("  stays: it is in use" if place in kind["kept"] else ""))
        if len(kind["places"]) > _PLACES:
            console.print(f"  … and {len(kind['places']) - _PLACES} more; --json has them all")
    if not any(kind["deleted"] for kind in answer["kinds"]):
        console.print(
            f"{size(sum(kind['bytes'] for kind in answer['kinds']))} in all; nothing was deleted, --yes does that."
        )

"""What commands print for people."""

from typing import Any

from flows.console.literal_text import PlainConsole, text_table
from flows.console.truth_printing import truth_table
from models.assessment.quantities import QUANTITIES, Quantity

_ABREAST = 5  # columns of other metrics that fit beside each other
_NARROW = 72  # columns of a terminal, below which a table with sentences in it cannot be read
_OPEN = "siloflow ui opens MLflow's and Prefect's pages"


def partition(made: dict[str, Any], console: PlainConsole) -> None:
    """What was made, in two lines, and what to know of it."""
    rows = made["rows"]
    console.print(
        f"{made['folder']}: {made['clients']} clients, {rows['train']} training, "
        f"{rows['validation']} validation and {rows['test']} test rows{_common(made['common'])}"
    )
    news = "data.dvc now records it" if made["changed"] else "as data.dvc records"
    console.print(f"data version {made['data_version']}, {news}")
    for note in made["notes"]:
        console.print(note)


def _common(rows: dict[str, int]) -> str:
    """Rows that no client owns, which are none of the clients'."""
    return (
        f"; common to all {' and '.join(f'{count} {split}' for split, count in sorted(rows.items()))} rows"
        if rows
        else ""
    )


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
    console.print(f"data version  {result['data_version']}")
    console.print(f"weights       {result['weights_sha256'][:32]}…")
    console.print(f"files         {result['folder']}")
    console.print(f"look closer   {_OPEN}")


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
    seeds = len({r["seed"] for r in answer["runs"]})
    console.print(
        f"mean ± standard deviation over {seeds} seeds; 95 % intervals over seeds and rows:"
        if seeds > 1
        else "one seed: 95 % intervals over rows, which say nothing of other seeds:"
    )
    for p in answer["paired"]:
        console.print(f"  {p['sentence']}")
    for failure in answer["failed"]:
        console.print(f"  {failure['method']} seed {failure['seed']} failed: {failure['error']}")
    console.print()
    console.print(f"data version  {answer['data_version']}")
    console.print(f"figure        {answer['figure']}")
    console.print(f"experiment    {answer['experiment']}")
    console.print(f"look closer   {_OPEN}")


def show(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a client, and how far apart they are."""
    labels = ["labels"] if answer["classes"] else ["y mean", "y sd"]
    table = text_table("client", "domain", "train", "validation", "test", *labels, "x mean", "x sd")
    for client in answer["clients"][:60]:
        rows, target = client["rows"], client["target"]
        table.add_row(
            client["name"],
            client["domain"] or "",
            *(str(rows[split]) for split in ("train", "validation", "test")),
            *([f"{v:.4g}" for v in target.values()] if target else [_bars(list(client["label_shares"].values()))]),
            f"{client['mean']:.3f}",
            f"{client['standard_deviation']:.3f}",
        )
    console.print(table)
    if len(answer["clients"]) > 60:
        console.print(f"… and {len(answer['clients']) - 60} more clients; --json has them all")
    feature = answer["feature_spread"]
    if answer["classes"]:
        console.print(f"classes         {', '.join(answer['classes'][:30])}")
        console.print(
            f"label spread    {answer['label_spread']:.3f}  (0: the same shares everywhere, 1: no label in common)"
        )
    if answer["target_spread"] is not None:
        console.print(f"target spread   {answer['target_spread']:.3f}  (as feature spread, of y)")
    if feature is not None:
        console.print(f"feature spread  {feature:.3f}  (distance between clients over spread within them)")
    console.print(f"data version    {answer['data_version']}")
    console.print(f"picture         {answer['figure']}")


def diagnose(answer: dict[str, Any], console: PlainConsole) -> None:
    """Sentences first, then one table, and where to look; `since`: the version that each silo is held beside."""
    since = answer.get("since")
    for sentence in answer["sentences"]:
        console.print(sentence)
    rows = answer["overview"]["rows"]
    if rows:
        console.print()
        if console.width < _NARROW:
            _one_below_another(rows, console)
        else:
            _beside_each_other(rows, console)
        if answer["overview"]["more"]:
            console.print(f"{answer['overview']['more']}; --json has them all")
        if answer["overview"]["scale"]:
            console.print(answer["overview"]["scale"])
    if answer["notes"] or answer["next"]:
        console.print()
    for note in answer["notes"]:
        console.print(note)
    for step in answer["next"]:
        console.print(f"next: {step}")
    console.print()
    console.print(f"data version  {answer['data_version']}" + (f", since {since}" if since else ""))
    console.print(f"told          {answer['bytes']['up_of_a_client']:,} bytes of each silo, no row")
    console.print(f"files         {answer['folder']}")
    if answer["pictures"]:
        console.print(f"pictures      {', '.join(answer['pictures'])}")
    console.print(f"look closer   {_OPEN}")


def _beside_each_other(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    table = text_table("silos", "beside", "differ in", "strength", "most in")
    for row in rows:
        for at, (what, strength) in enumerate(row["differ"]):
            sides = (row["first"], row["second"]) if at == 0 else ("", "")
            table.add_row(*sides, what, strength, ", ".join(row["features"]) if at == 0 else "")
    table.columns[0].no_wrap = False
    console.print(table)


def _one_below_another(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    """Where no table fits."""
    for row in rows:
        console.print(f"{row['first']} beside {row['second']}")
        for what, strength in row["differ"]:
            console.print(f"  {what}: {strength}" if strength != "-" else f"  {what}")
        if row["features"]:
            console.print(f"  most in {', '.join(row['features'])}")


def methods(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a method."""
    table = text_table("method", "model tested", "options", "what it does")
    for method in answer["methods"]:
        options = ", ".join(f"{k}={v}" for k, v in method["options"].items()) or "-"
        table.add_row(method["method"], method["model"], options, method["summary"].partition(": ")[2])
    console.print(table)


def stats(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a statistic, and what is odd about it."""
    console.print(f"client {answer['client']}, {answer['rows']} training rows")
    table = text_table("statistic", "numbers", "determined", "eigenvalue gap", "begins with")
    at = 0
    for line in answer["kinds"]:
        numbers = answer["statistics"][at : at + line["length"]]
        at += line["length"]
        gap = "-" if line["gap"] is None else f"{line['gap']:.3f}"
        begins = ", ".join(f"{number:.4g}" for number in numbers[:5])
        table.add_row(line["kind"], str(line["length"]), "yes" if line["ok"] else "no", gap, begins)
    console.print(table)
    for note in answer["notes"]:
        console.print(f"  {note}")
    console.print("all numbers     --json" + (f", {answer['written']}" if answer["written"] else ""))


def cost(answer: dict[str, Any], console: PlainConsole) -> None:
    """What is counted, what is timed, and a row for each number of rows at once."""
    macs, sent, largest, latency = (answer[key] for key in ("macs", "bytes", "largest_client", "latency"))
    low, high = latency["quartiles"]
    shape = " x ".join(map(str, answer["shape"]))
    whose = f"as {answer['method']} makes it" if answer["method"] else "of params.yaml"
    of_round = f"{largest['client']}: {largest['rows']:,} rows, {largest['epochs']:,} epochs"
    numbers = {
        "network": f"{answer['network']} {whose}, rows of {shape}, outputs {answer['outputs']}",
        "parameters": f"{answer['parameters']:,} learned, {answer['buffers']:,} in buffers",
        "MACs of a row": f"{macs['forward']:,} forward, {macs['forward_and_backward']:,} forward and backward",
        "MACs of a round": f"{macs['round']:,} of the largest client ({of_round})",
        "file": f"{sent['file']:,} bytes of weights (safetensors)",
        "a round of FedAvg": f"{sent['up']:,} bytes up, {sent['down']:,} bytes down, of each client",
        "latency of a row": f"{latency['milliseconds']:.3g} ms, quartiles {low:.3g} to {high:.3g} (measured, "
        f"{latency['passes']} passes on one thread of this machine)",
    }
    for name, text in numbers.items():
        console.print(f"{name:<19}{text}")
    _memory(answer["memory"], console)


def _memory(memory: dict[str, Any], console: PlainConsole) -> None:
    """A row for each number of rows at once."""
    table = text_table("rows", "which", "largest layer", "evaluation", "at least", "training")
    for line in memory["rows"]:
        whole, least = f"{line['largest_activation']:,}", line["training_floor"]
        floor = "-" if least is None else f"{least:,}"
        table.add_row(
            f"{line['rows']:,}",
            line["what"],
            whole,
            _megabytes(line["evaluation"]),
            floor,
            _megabytes(line["training"]),
        )
    console.print()
    console.print(table)
    console.print(
        "Of so many rows at once: bytes of the largest layer; at least: parameters, gradients, optimiser "
        "and that layer in a training step."
    )
    if memory["note"]:
        console.print(f"memory {memory['note']}.")
        return
    console.print(
        "evaluation, training: measured, the most memory that a process held which did this, less what it held with the "
        f"network alone; of two times the larger, which differ by {_megabytes(memory['repeats_within'])} or less. What "
        "torch loads at its first pass is in it. siloflow itself evaluates in chunks."
    )


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.1f} MB"


def export(answer: dict[str, Any], console: PlainConsole) -> None:
    """What was written, what it takes and answers, and how near it is."""
    compared, shape = answer["compared"], " x ".join(map(str, answer["shape"]))
    whose = f"client {answer['client']}" if answer["client"] else "all clients"
    rows = "test rows" if compared["whose"] == "test" else "random rows"
    takes = f"rows of {shape}, {answer['dtype']}" + (", 0 to 255" if answer["dtype"] == "uint8" else "")
    gives = f"{len(answer['classes'])} probabilities a row" if answer["classes"] else "a number a row"
    console.print(f"{answer['method']} seed {answer['seed']}, round {answer['round']}: the model of {whose}")
    console.print(f"takes         {takes}; any number of them")
    console.print(f"answers       {gives}")
    console.print(
        f"opened again  differs from ours by {compared['largest_difference']:.1e} at most on {compared['rows']} {rows}"
    )
    console.print(f"file          {answer['file']} ({answer['bytes']:,} bytes)")
    if answer["personal"]:
        console.print(f"it holds what client {answer['client']} keeps to itself; leave it with that client.")


def bench(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a workload: seconds a round, and how often the plain loop's round is as long."""
    by_hand = {f"{kind} {threads}" for kind in ("plain", "authors") for threads in (1, 2)}
    seconds = answer["workloads"][0]["seconds_per_round"]
    peers = [name for name in seconds if name not in by_hand and name != "siloflow"]
    table = text_table("", "plain", "siloflow", "ratio", "each turn", "training", "around it", "peak", *peers)
    for line in answer["workloads"]:
        seconds = line["seconds_per_round"]
        table.add_row(
            line["workload"],
            f"{seconds[line['better_plain']]:.3f} s",
            f"{seconds['siloflow']:.3f} s",
            f"{line['ratio']:.2f}",
            " ".join(f"{r:.2f}" for r in line["ratio_by_turn"]),
            f"{line['local_train_ratio']:.1f}",
            f"{line['orchestration_share']:.1%}",
            f"{line['peak_bytes']['siloflow'] / 2**20:.0f} MiB",
            *(f"{seconds[name]:.3f} s" if name in seconds else "-" for name in peers),
        )
    console.print(table)
    for line in answer["workloads"]:
        console.print(f"  {line['workload']}: {line['about']}")
    console.print(
        f"Seconds of a whole round over {answer['repeats']} turns on {answer['cores']} cores. ratio: the better plain "
        "loop's round over ours; training: over our local_train alone; around it: orchestration's share of our round."
    )


def overhead(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row an encoder: parameters and milliseconds without and with a codebook."""
    table = text_table("encoder", "parameters", "with words", "", "ms", "with words", "ratio", "each turn")
    for line in answer["encoders"]:
        numbers, milliseconds = line["parameters"], line["milliseconds"]
        table.add_row(
            line["encoder"],
            f"{numbers['fedavg']:,}",
            f"{numbers['uefl']:,}",
            f"{numbers['uefl'] / numbers['fedavg'] - 1:+.2%}",
            f"{milliseconds['fedavg']:.0f}",
            f"{milliseconds['uefl']:.0f}",
            f"{line['ratio']:.3f}",
            " ".join(f"{r:.2f}" for r in line["ratio_by_turn"]),
        )
    console.print(table)
    console.print(
        f"Forward and backward of {answer['rows']} rows on one thread, with {answer['words']} words; medians over "
        f"{answer['repeats']} turns. ratio: with words over without, turn by turn."
    )


def regroup(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a number of clients for the server's part; then rounds without and with regrouping."""
    table = text_table("clients", "groups", "least", "median", "peak memory")
    for line in answer["server"]:
        seconds = (f"{line['seconds'][name]:.3f} s" for name in ("least", "median"))
        table.add_row(str(line["clients"]), str(line["groups"]), *seconds, f"{line['peak_bytes'] / 2**20:.0f} MiB")
    console.print(table)
    console.print(f"Overlaps of all pairs on {answer['rows']} rows, the gap between them, and complete linkage.")
    console.print()
    line = answer["round"]
    table = text_table("clients", "fedavg", "selective", "more", "each turn", *line["task_seconds"])
    table.add_row(
        str(line["clients"]),
        *(f"{line['seconds'][name]:.3f} s" for name in ("fedavg", "selective")),
        f"{line['share']:+.0%}",
        " ".join(f"{share:+.0%}" for share in line["share_by_turn"]),
        *(f"{seconds:.3f} s" for seconds in line["task_seconds"].values()),
    )
    console.print(table)
    console.print(
        f"A round of 784-30-10 on {line['trained_rows']} rows each, and one that makes groups of all besides; medians over "
        f"{answer['repeats']} turns."
    )


def diagnose_cost(answer: dict[str, Any], console: PlainConsole) -> None:
    """Seconds, memory and bytes, a line each."""
    told, printed, fedwad = (answer[part] for part in ("bytes_of_a_client", "printed_rule", "fedwad"))
    lines = {
        "asked": f"{answer['clients']:,} silos of {answer['rows']} rows, {answer['features']} features, "
        f"{answer['classes']} classes",
        "a silo": f"{answer['client_seconds'] * 1000:.1f} ms; tells {told['told']:,} bytes, its rows are {told['rows']:,}",
        "the server": f"{answer['server_seconds']:.0f} s for {answer['pairs']:,} pairs, "
        f"{answer['server_peak_bytes'] / 2**20:,.0f} MiB",
        "groups": f"{len(answer['groups'])}, " + ("the laws'" if answer["laws_found"] else "not the laws'"),
        "printed rule": f"{printed['seconds']:.1f} s on {printed['features']} features; all: "
        f"{printed['all_extrapolated']:,.0f} s (extrapolated)",
    }
    if fedwad is not None:
        lines["FedWaD"] = (
            f"{fedwad['seconds']:.0f} s for {fedwad['pairs']} pairs, {fedwad['bytes_of_a_pair']:,} bytes a pair; all: "
            f"{fedwad['all_extrapolated'] / 3600:,.0f} hours (extrapolated)"
        )
    for name, text in lines.items():
        console.print(f"{name:<14}{text}")


def tune(answer: dict[str, Any], console: PlainConsole) -> None:
    """What was measured, and the block for params.yaml."""
    table = text_table("kind", "stack", "ms a client and epoch")
    for line in answer["measured"]:
        table.add_row(line["kind"], str(line["stack"]), f"{line['milliseconds']:.3f}")
    console.print(table)
    now, engine = answer["now"], answer["engine"]
    console.print(f"now: {now['kind']}, stacks of {now['stack']}. Fastest here, for params.yaml:")
    for line in ("engine:", f"  kind: {engine['kind']}", f"  stack: {engine['stack']}"):
        console.print(line)


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


def spread(row: dict[str, Any], name: str, quantity: Quantity) -> str:
    """Mean ± standard deviation over seeds; one seed has none."""
    mean = quantity.number(row[name])
    return f"{mean} ± {quantity.number(row[name + '/sd'], 2)}" if row["seeds"] > 1 and mean != "-" else mean


def _bars(shares: list[float]) -> str:
    """Label shares as small bars, at most 20."""
    levels = " ▁▂▃▄▅▆▇█"
    top = max(shares, default=0) or 1
    return "".join(levels[round(8 * s / top)] for s in shares[:20])


def data_log(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a version, the present one marked."""
    table = text_table("", "revision", "date", "partitions", "commit")
    for version in answer["versions"]:
        parts = ", ".join(f"{name} {digest[:10]}" for name, digest in version["partitions"].items())
        mark = "*" if version["digest"] == answer["now"] else ""
        table.add_row(mark, version["revision"], version["date"], parts or version["digest"][:10], version["subject"])
    if answer["versions"]:
        console.print(table)
    if answer["now"] is None:
        console.print("there is no data.dvc now; `siloflow partition` makes and records data.")
    elif answer["now"] not in [v["digest"] for v in answer["versions"]]:
        console.print(
            "data.dvc records a version that is not committed yet; `git add data.dvc` and `git commit` do that."
        )


def data_diff(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a silo that changed."""
    if not answer["silos"]:
        console.print("no silo differs.")
        return
    table = text_table("silo", "change", "domain", "train", "valid.", "test", "labels", "mean")
    for silo in answer["silos"]:
        table.add_row(f"{silo['name']}/{silo['client']}", silo["change"], *_sides(silo["before"], silo["after"]))
    console.print(table)


def data_use(answer: dict[str, Any], console: PlainConsole) -> None:
    """What is in data/ now, and what params.yaml has to say for it."""
    for name, digest in answer["partitions"].items():
        console.print(f"data/{name} is version {digest} again")
    if answer["params_differ"]:
        console.print(f"before a run: {answer['params_differ']}")


def _sides(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    """Cells `before → after`, or the one value where both agree."""

    def cells(side: dict[str, Any] | None) -> list[str]:
        if side is None:
            return ["-"] * 6
        rows = [str(side["rows"][split]) for split in ("train", "validation", "test")]
        return [side["domain"] or "-", *rows, _bars(list(side["label_shares"].values())), f"{side['mean']:.3f}"]

    pairs = zip(cells(before), cells(after), strict=True)
    return [a if a == b else f"{a} → {b}" for a, b in pairs]


def reproduce(answer: dict[str, Any], console: PlainConsole) -> None:
    """Published beside ours."""
    if "confusions" in answer:
        truth_table(answer, console)
        return
    console.print(answer["title"])
    console.print(answer["source"])
    rows = answer["rows"]
    also = [name for name in ("floor", "fresh", "unseen") if any(row[name] is not None for row in rows)]
    table = text_table("cell", "published", "ours", *also, "each seed", "s a run", "what it is")
    for row in rows:
        ours = _four(row["ours"]) + (f" ± {row['sd']:.2g}" if row["sd"] else "")
        each = " ".join(map(_four, row["values"])) + (f"; {row['missed']} missed" if row["missed"] else "")
        others = (_four(row[name]) for name in also)
        table.add_row(row["cell"], _four(row["published"]), ours, *others, each, f"{row['seconds']:.0f}", row["about"])
    console.print(table)
    seeds = f"{'draws of the data' if answer['seeds_are'] == 'data' else 'seeds'} {rows[0]['seeds']}"
    console.print(f"in {answer['unit']}; mean ± standard deviation over {seeds}; scale {answer['scale']}")
    if answer["by_class"]:
        _by_class(answer["by_class"], console)
    if answer["also"]:
        _also(answer["also"], console)
    if answer["ensembles"]:
        _ensembles(answer["ensembles"], console)
    if answer["paired"]:
        console.print()
        console.print("95 % intervals of paired differences:")
    for pair in answer["paired"]:
        console.print(f"  {pair['sentence']}")
    console.print()
    console.print(f"known         {answer['known_errors']}")
    console.print(f"results       {answer['results']}")
    for figure in answer["figures"]:
        console.print(f"figure        {figure}")
    console.print(f"experiment    {answer['experiment']}")


def _by_class(classes: dict[str, dict[str, dict[str, float | None]]], console: PlainConsole) -> None:
    """A row a class, published / ours in each cell's column."""
    table = text_table("class", *next(iter(classes.values())))
    for name, cells in classes.items():
        table.add_row(name, *(f"{_three(c['published'])} / {_three(c['ours'])}" for c in cells.values()))
    console.print()
    console.print("published / ours, share of the class's test rows that are right")
    console.print(table)


def _also(metrics: dict[str, dict[str, dict[str, float | None]]], console: PlainConsole) -> None:
    """A row a cell, a column a metric, as many as fit: ours ± spread over seeds, and what is published in brackets."""
    console.print()
    console.print("of the same runs: ours ± standard deviation (published)")
    titles = list(metrics)
    for at in range(0, len(titles), _ABREAST):
        table = text_table("cell", *titles[at : at + _ABREAST])
        for cell in metrics[titles[at]]:
            sides = [metrics[title][cell] for title in titles[at : at + _ABREAST]]
            spread = [f" ± {side['sd']:.1g}" if side["sd"] else "" for side in sides]
            published = [f" ({_three(side['published'])})" if side["published"] is not None else "" for side in sides]
            ours = [_three(side["ours"]) for side in sides]
            table.add_row(cell, *("".join(parts) for parts in zip(ours, spread, published, strict=True)))
        console.print(table)


def _ensembles(ensembles: dict[str, dict[str, float] | None], console: PlainConsole) -> None:
    """A row a cell, a column a number of its runs together."""
    names = next((list(numbers) for numbers in ensembles.values() if numbers), [])
    table = text_table("cell", *(name.replace("_", " ") for name in names))
    for cell, numbers in ensembles.items():
        table.add_row(cell, *(_three((numbers or {}).get(name)) for name in names))
    console.print()
    console.print("all seeds of a cell as one deep ensemble")
    console.print(table)


def _four(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def estimate(answer: dict[str, Any], console: PlainConsole) -> None:
    """Minutes by cell."""
    for cell, seconds in answer["seconds"].items():
        console.print(f"{cell:<20} about {_time(seconds)}")
    console.print(f"in all               about {_time(sum(answer['seconds'].values()))} on this machine")


def _time(seconds: float) -> str:
    """Seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"

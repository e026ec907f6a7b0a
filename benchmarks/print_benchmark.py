"""Print the measurements of benchmarks."""

from statistics import median
from typing import Any

from flows.core.console.safe_text import PlainConsole


def bench(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print a row a workload with seconds a round and the ratio to the plain loop, then limits and peers."""
    by_hand = {f"{kind} {threads}" for kind in ("plain", "authors", "bayes") for threads in (1, 2)}
    table = console.table("", "plain", "siloflow", "ratio", "each turn", "training", "around it", "peak")
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
        )
    console.print(table)
    for line in answer["workloads"]:
        console.print(f"  {line['workload']}: {line['about']}")
        limits = line["limits"]
        billions, most, copies = (limits[n] / 1e9 for n in ("flop_of_a_round", "flop_per_second", "bytes_per_second"))
        console.print(
            f"    {billions:.1f} GFLOP a round, {limits['share_of_products']:.0%} of what large products reach here "
            f"({most:.0f} GFLOP/s; copies {copies:.0f} GB/s)"
        )
        console.print(
            f"    its products and convolutions alone, a batch at a time: {limits['kernel_seconds']:.3f} s a round"
        )
        seconds = line["seconds_per_round"]
        for name in [n for n in seconds if n not in by_hand and n != "siloflow"]:
            times = seconds[name] / seconds["siloflow"]
            console.print(f"    {name} takes {seconds[name]:.3f} s a round, {times:.2f} times as long as siloflow")
        for name, ratios in line["times"].items():
            each = " ".join(f"{r:.2f}" for r in ratios)
            console.print(f"    siloflow's round is {median(ratios):.2f} times that of {name}; each turn {each}")
        if line["accuracy"]:
            right = ", ".join(f"{name} {share:.3f}" for name, share in line["accuracy"].items())
            console.print(f"    accuracy at the end: {right}")
    console.print(
        f"Seconds of a whole round over {answer['repeats']} turns on {answer['cores']} cores. ratio: the better plain "
        "loop's round over ours; training: over our clients' training alone; around it: orchestration's share of our round."
    )


def overhead(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print a row an encoder: parameters and milliseconds without and with a codebook."""
    table = console.table("encoder", "parameters", "with words", "", "ms", "with words", "ratio", "each turn")
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
    """Print a row a number of clients for the server's part, then rounds without and with regrouping."""
    table = console.table("clients", "groups", "least", "median", "peak memory")
    for line in answer["server"]:
        seconds = (f"{line['seconds'][name]:.3f} s" for name in ("least", "median"))
        table.add_row(str(line["clients"]), str(line["groups"]), *seconds, f"{line['peak_bytes'] / 2**20:.0f} MiB")
    console.print(table)
    console.print(f"Overlaps of all pairs on {answer['rows']} rows, the gap between them, and complete linkage.")
    console.print()
    line = answer["round"]
    table = console.table("clients", "fedavg", "selective", "more", "each turn", *line["task_seconds"])
    table.add_row(
        str(line["clients"]),
        *(f"{line['seconds'][name]:.3f} s" for name in ("fedavg", "selective")),
        f"{line['share']:+.0%}",
        " ".join(f"{share:+.0%}" for share in line["share_by_turn"]),
        *(f"{seconds:.3f} s" for seconds in line["task_seconds"].values()),
    )
    console.print(table)
    console.print(
        f"A round of 784-30-10 on {line['trained_rows']} rows each, without and with grouping all clients; medians over "
        f"{answer['repeats']} turns."
    )


def population(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print a row a number of clients: the partition, then a round of a hundred clients."""
    made = console.table("clients", "partition", "its peak", "on disk", "opened")
    rounds = console.table("clients", "a round", "times", "each turn", "first", "peak", "journal")
    lines = list(answer["sizes"].values())
    for line in lines:
        made.add_row(
            f"{line['clients']:,}",
            f"{line['partition_seconds']:.1f} s",
            f"{line['partition_peak_bytes'] / 2**20:.0f} MiB",
            f"{line['data_bytes'] / 2**20:.0f} MiB",
            f"{line['opened']:.2f} s",
        )
        rounds.add_row(
            f"{line['clients']:,}",
            f"{line['round'] * 1000:.0f} ms",
            f"{line['times']:.2f}",
            " ".join(f"{times:.2f}" for times in line["times_by_turn"]),
            f"{line['first']:.2f} s",
            f"{line['peak_bytes'] / 2**20:.0f} MiB",
            f"{line['journal_bytes'] / 2**10:.1f} KiB",
        )
    console.print(made)
    console.print()
    console.print(rounds)
    console.print(
        f"{answer['called']} clients of {answer['rows']} rows are called a round; medians over {answer['repeats']} turns. "
        f"times: a round over that of {lines[0]['clients']:,} clients, turn by turn; first: the first round."
    )


def diagnose_cost(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print seconds, memory and bytes, a line each."""
    sent, printed = answer["bytes_of_a_client"], answer["printed_rule"]
    lines = {
        "data": f"{answer['clients']:,} silos of {answer['rows']} rows, {answer['features']} features, "
        f"{answer['classes']} classes",
        "a silo": f"{answer['client_seconds'] * 1000:.1f} ms; sends {sent['told']:,} bytes, its rows have {sent['rows']:,}",
        "the server": f"{answer['server_seconds']:.0f} s for {answer['pairs']:,} pairs, "
        f"{answer['server_peak_bytes'] / 2**20:,.0f} MiB",
        "groups": f"{len(answer['groups'])}, " + ("the true ones" if answer["laws_found"] else "not the true ones"),
        "printed rule": f"{printed['seconds']:.1f} s on {printed['features']} features; all: "
        f"{printed['all_extrapolated']:,.0f} s (extrapolated)",
    }
    for name, text in lines.items():
        console.print(f"{name:<14}{text}")


def cells(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print by shift and size how often the true type is named without and with least rows of a cell."""
    table = console.table("shift", "rows", "rare", "single rows", f"least_cell {answer['least_cell']}", "of")
    for line in answer["lines"]:
        off, on = (line[name]["any" if line["shift"] == "none" else "named"] for name in ("off", "on"))
        table.add_row(line["shift"], f"{line['rows']:,}", str(line["rare"]), str(off), str(on), str(line["draws"]))
    console.print(table)
    console.print("Pairs of silos whose true type is named, and of alike silos those that are given any type.")


def intervals(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print how often each interval covers the truth, how often Holm's families and sentences err, and other intervals."""
    table = console.table("interval over", "of", "seeds", "their sd", "covers")
    for line in answer["rows"]:
        table.add_row(
            "rows and seeds", line["data"], str(line["seeds"]), f"{line['seed_sd']}", f"{line['covered']:.1%}"
        )
    for line in answer["silos"]:
        table.add_row("silos and seeds", f"{line['silos']} silos", str(line["seeds"]), "0.1", f"{line['covered']:.1%}")
    for line in answer["partitions"]:
        drawn = f"{line['partitions']} partitions, {line['shared']:.0%} of rows shared"
        table.add_row("partitions", drawn, str(line["seeds"]), "0.1", f"{line['covered']:.1%}")
    console.print(table)
    table = console.table("methods", "truly equal", "seeds", "their sd", "wrong winner", "after Holm")
    for line in answer["holm"]:
        counts = (str(line[name]) for name in ("methods", "equal", "seeds", "seed_sd"))
        table.add_row(*counts, f"{line['plain']:.1%}", f"{line['corrected']:.1%}")
    console.print(table)
    table = console.table("differences of silos", "silos", "Student", "BCa", "bootstrap-t")
    for line in answer["over_silos"]:
        shares = (f"{line[name]:.1%}" for name in ("student", "bca", "studentised"))
        table.add_row(line["differences"], str(line["silos"]), *shares)
    console.print(table)
    console.print(
        f"{answer['times']} simulated comparisons a line. A method is right on a row where a normal score is positive: "
        "0.9, and 0.2 for the gap between methods; rows have sd 1."
    )
    table = console.table("sentences of", "say what is better", "interval holds 0", "with a false one")
    read = answer["sentences"]
    for name in ("advise", "compare"):
        line = read[name]
        table.add_row(name, str(line["claims"]), str(line["unsupported"]), f"{line['false']:.1%}")
    console.print(table)
    console.print(
        f"{read['times']} simulated comparisons of methods that differ little or not. All intervals of a proof hold the "
        f"truth in {read['covered']:.1%}; each interval of the advised method does in {read['gain_covered']:.1%}."
    )


def privacy_cost(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print a row a network and number of rows: the plain step, what clipping and noise make of it, and memory."""
    table = console.table("", "rows", "plain", "clipped", "each turn", "noisy", "each turn", "memory")
    for line in answer["lines"]:
        parts = []
        for step in ("clipped", "noisy"):
            ratios = line["ratio_by_turn"][step]
            parts += [f"{line['ratio'][step]:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        plain = f"{line['milliseconds']['plain']:.1f} ms"
        table.add_row(
            line["workload"],
            str(line["rows"]),
            plain,
            *parts,
            f"{line['times_memory']:.2f}" if "times_memory" in line else "",
        )
    console.print(table)
    console.print(
        "Steps of one stack on one thread: times of a private step over the plain step's, and peak memory over its memory. "
        f"A normal number from a silo's key takes {answer['normal_nanoseconds']:.1f} ns."
    )


def serving(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print the milliseconds of requests, a row a size, and the server's memory."""
    table = console.table("rows of a request", "p50", "p99")
    for line in answer["lines"]:
        table.add_row(str(line["rows"]), *(f"{line[name] * 1000:.1f} ms" for name in ("p50", "p99")))
    console.print(table)
    before, after = (answer[name] / 2**20 for name in ("bytes_before", "bytes_after"))
    console.print(
        f"{answer['requests']:,} requests of each size with {answer['columns']} columns, one after another on loopback. "
        f"Memory of the server before and after: {before:.1f} and {after:.1f} MiB."
    )


def regret(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print the regret of each strategy that chooses a method."""
    table = console.table("strategy", "regret, points", "worst", "within a point", "behind advise of 5 minutes")
    for name, line in answer["strategies"].items():
        mean, low, high = line["regret"]
        behind = f"{line['behind'][0]:+.2f} ({line['behind'][1]:.2f} to {line['behind'][2]:.2f})"
        within = f"{line['within_a_point']} of {answer['federations']}"
        table.add_row(name, f"{mean:.2f} ({low:.2f} to {high:.2f})", f"{line['worst']:.1f}", within, behind)
    console.print(table)
    console.print("Points are hundredths of accuracy, or of squared error over the variance of the targets.")


def races(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print each live race of `advise` with its replay."""
    table = console.table("federation", "advised", "by replay", "winner", "by replay", "same end", "slower")
    for name, race in answer["races"].items():
        advised, replayed = race["advised"], race["replayed"] or ["-"]
        winners, ends = (race["winner"], race["replayed_winner"] or "-"), f"{race['same_end']} of {race['both']}"
        table.add_row(name, advised[0], replayed[0], *winners, ends, f"{race['slower']:.1f}")
    console.print(table)
    console.print(
        f"{answer['minutes']} minutes each. same end: settings of both races that were dropped at the same round, for the "
        "same reason. slower: a live leg over that of the replay, whose minutes are shortened by it."
    )


def tune(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print the measurements, and the block for params.yaml."""
    table = console.table("kind", "stack", "ms a client and epoch")
    for line in answer["measured"]:
        table.add_row(line["kind"], str(line["stack"]), f"{line['milliseconds']:.3f}")
    console.print(table)
    now, engine = answer["now"], answer["engine"]
    console.print(f"now: {now['kind']}, stacks of {now['stack']}. Fastest here, for params.yaml:")
    for line in ("engine:", f"  kind: {engine['kind']}", f"  stack: {engine['stack']}"):
        console.print(line)

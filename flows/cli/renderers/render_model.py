"""Print a model's cost, an exported file, methods with their options, and the diagnosis."""

from typing import Any

from flows.cli.renderers.render_runs import LOOK_CLOSER
from flows.console.safe_text import PlainConsole, text_table


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


def methods(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a method."""
    table = text_table("method", "what it does")
    for method in answer["methods"]:
        table.add_row(method["method"], method["summary"].partition(": ")[2])
    console.print(table)
    console.print("`siloflow methods NAME` has a method's options.")


def method(answer: dict[str, Any], console: PlainConsole) -> None:
    """What it does, and a row an option."""
    console.print(answer["summary"])
    console.print(f"model tested  {answer['model']}")
    console.print(f"page          {answer['page']}")
    console.print()
    if not answer["options"]:
        console.print("It has no options of its own.")
        return
    table = text_table("option", "default", "what it is, and what it takes")
    for option in answer["options"]:
        told = [option["meaning"]] if option["meaning"] else []  # of a page of the user's own
        for at, line in enumerate([*told, option["takes"]]):
            name, default = (option["name"], _value(option["default"])) if at == 0 else ("", "")
            table.add_row(name, default, line)
    console.print(table)
    name = answer["options"][0]["name"]
    console.print(f"Set one with --set method.{answer['method']}.{name}=VALUE, or under method: in params.yaml.")


def _value(default: Any) -> str:
    """As YAML has it."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, list):
        return f"[{', '.join(map(_value, default))}]"
    if isinstance(default, dict):
        return f"{{{', '.join(f'{key}: {_value(value)}' for key, value in default.items())}}}"
    return f"{default:.4g}" if isinstance(default, float) else str(default)


_NARROW = 72  # columns of a terminal, below which a table with sentences in it cannot be read


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
    console.print(f"told          {answer['bytes']['up_of_a_client']:,} bytes of a silo at most, no row")
    console.print(f"files         {answer['folder']}")
    if answer["pictures"]:
        console.print(f"pictures      {', '.join(answer['pictures'])}")
    console.print(f"look closer   {LOOK_CLOSER}")


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

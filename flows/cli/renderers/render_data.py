"""What is printed of silos and of versions of them."""

import shlex
from typing import Any

from flows.console.safe_text import PlainConsole, text_table

_SPLITS = ("train", "validation", "test")
_CHANGES = ("added", "removed", "changed")
_LEFT_OUT = 10  # columns of odd numbers that `init` names


def init(made: dict[str, Any], console: PlainConsole) -> None:
    """What was made, what was guessed, and what to type next."""
    there = ["params.yaml", "prefect.yaml", ".gitignore", *(f"a {name} repository" for name in made["repositories"])]
    there += ["a first commit"] if made["committed"] else []
    copied = f"; {made['copied']} is copied there, and git leaves it out" if made["copied"] else ""
    guessed = [", ".join(made["guessed"]), _read(made["read"]), _network(made["network"])]
    table = text_table("", "")
    table.show_header = False
    table.add_row("made", f"{made['folder']}: {', '.join(there)}{copied}")
    table.add_row("guessed", "; ".join(filter(None, guessed)))
    for reason in made["left_out"][:_LEFT_OUT]:
        table.add_row("left out", reason)
    if len(made["left_out"]) > _LEFT_OUT:
        table.add_row("left out", f"{len(made['left_out']) - _LEFT_OUT} more columns; --json has them all")
    if made["left_out"]:
        table.add_row("", "once corrected, take such a column out of `drop` in params.yaml")
    console.print(table)
    there_first = "" if made["folder"] == "." else f"cd {shlex.quote(made['folder'])} && "
    if not made["committed"] and "git" in made["repositories"]:
        console.print("Nothing is committed yet: git has no user.name and user.email. With them:")
        console.print(f"next     {there_first}git add --all && git commit -m 'Start the project'", soft_wrap=True)
    console.print(f"next     {there_first}siloflow partition && siloflow compare", soft_wrap=True)


def _read(held: dict[str, Any] | None) -> str:
    """What lies in a person's file, or in what comes without one."""
    if held is None:
        return "no file was given, and the data are 1,797 digits that come with scikit-learn, in 9 silos"
    silos = f", {held['clients']:,} silos" if held["clients"] else ""
    classes = f", {held['classes']:,} classes" if held["classes"] else ""
    return f"{held['rows']:,} rows of {' x '.join(map(str, held['shape']))} numbers{classes}{silos}"


def _network(network: dict[str, Any]) -> str:
    linear = " without hidden layers, rows being few" if network.get("hidden") == [] else ""
    return f"network {network['kind']}{linear}"


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
    if made["params_yaml"]:
        console.print("params.yaml describes other data: a run needs the same --set, or these lines in params.yaml:")
        for line in made["params_yaml"]:
            console.print(f"  {line}", soft_wrap=True)


def _common(rows: dict[str, int]) -> str:
    """Rows that no client owns, which are none of the clients'."""
    return (
        f"; common to all {' and '.join(f'{count} {split}' for split, count in sorted(rows.items()))} rows"
        if rows
        else ""
    )


def show(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a client, or of very many a row a law and a few clients; and how far apart they are."""
    many = answer["opened"] < answer["count"]
    if many:
        _laws(answer, console)
    labels = ["labels"] if answer["classes"] else ["y mean", "y sd"]
    table = text_table("client", "domain", "train", "validation", "test", *labels, "x mean", "x sd")
    for client in answer["clients"][:60]:
        rows, target = client["rows"], client["target"]
        table.add_row(
            client["name"],
            client["domain"] or "",
            *(str(rows[split]) for split in _SPLITS),
            *([f"{v:.4g}" for v in target.values()] if target else [_bars(list(client["label_shares"].values()))]),
            f"{client['mean']:.3f}",
            f"{client['standard_deviation']:.3f}",
        )
    console.print(table)
    if many:
        console.print(
            f"{len(answer['clients'])} of {answer['count']:,} clients; what follows is of {answer['opened']:,}"
        )
    elif len(answer["clients"]) > 60:
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


def _laws(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a law, and how many rows clients have."""
    table = text_table("law", "clients", "train", "validation", "test", "labels" if answer["classes"] else "y mean")
    for law in answer["laws"]:
        seen = "-" if law["target"] is None else f"{law['target']:.4g}"
        labels = _bars(list(law["label_shares"].values())) if answer["classes"] else seen
        table.add_row(
            law["domain"] or "-", f"{law['clients']:,}", *(f"{law['rows'][split]:,}" for split in _SPLITS), labels
        )
    console.print(table)
    rest = answer["count"] - sum(law["clients"] for law in answer["laws"])
    if rest:
        console.print(f"… and {rest:,} clients of other laws")
    for split in _SPLITS:
        sizes = answer["sizes"][split]
        console.print(
            f"{split + ' rows':16}{sizes['least']:,} to {sizes['most']:,} a client, median {sizes['median']:,g}; "
            f"{answer['rows'][split]:,} in all"
        )


def stats(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a statistic, and what is odd about it."""
    console.print(f"client {answer['client']}, {answer['rows']} training rows")
    table = text_table("statistic", "numbers", "determined", "eigenvalue gap", "halves agree", "begins with")
    at = 0
    for line in answer["kinds"]:
        numbers = answer["statistics"][at : at + line["length"]]
        at += line["length"]
        told = ("-" if line[name] is None else f"{line[name]:.3f}" for name in ("gap", "agreement"))
        begins = ", ".join(f"{number:.4g}" for number in numbers[:5])
        table.add_row(line["kind"], str(line["length"]), "yes" if line["ok"] else "no", *told, begins)
    console.print(table)
    for note in answer["notes"]:
        console.print(f"  {note}")
    console.print("all numbers     --json" + (f", {answer['written']}" if answer["written"] else ""))


def data_log(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a version, the present one marked."""
    table = text_table("", "version", "revision", "date", "partitions", "commit")
    for version in answer["versions"]:
        mark = "*" if version["digest"] == answer["now"] else ""
        parts = ", ".join(version["partitions"]) or "-"
        table.add_row(mark, version["digest"][:10], version["revision"], version["date"], parts, version["subject"])
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
    differ = sum(each[kind] for each in answer["partitions"] for kind in _CHANGES)
    some = len(answer["silos"]) < differ
    if some:
        console.print(f"{len(answer['silos']):,} of {differ:,} silos that differ:")
    console.print(table)
    if some:
        for each in answer["partitions"]:
            clients = " → ".join(f"{each[side]['clients']:,}" for side in ("before", "after"))
            kinds = ", ".join(f"{each[kind]:,} {kind}" for kind in _CHANGES)
            console.print(f"{each['name']}, in all: {clients} silos; {kinds}")


def data_use(answer: dict[str, Any], console: PlainConsole) -> None:
    """What is in data/ now, and what params.yaml has to say for it."""
    console.print(f"data/ is version {answer['digest']} again: {', '.join(answer['partitions'])}")
    if answer["settings"]:
        console.print("params.yaml describes other data. To run on these, add:")
        console.print(_options(answer["settings"]), soft_wrap=True)
    if answer["params_differ"]:
        console.print(f"before a run: {answer['params_differ']}")


def _options(settings: list[str]) -> str:
    """To be pasted behind a command."""
    return " ".join(f"--set {shlex.quote(setting)}" for setting in settings)


def _sides(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    """Cells `before → after`, or the one value where both agree."""

    def cells(side: dict[str, Any] | None) -> list[str]:
        if side is None:
            return ["-"] * 6
        rows = [str(side["rows"][split]) for split in _SPLITS]
        return [side["domain"] or "-", *rows, _bars(list(side["label_shares"].values())), f"{side['mean']:.3f}"]

    pairs = zip(cells(before), cells(after), strict=True)
    return [a if a == b else f"{a} → {b}" for a, b in pairs]


def _bars(shares: list[float]) -> str:
    """Label shares as small bars, at most 20."""
    levels = " ▁▂▃▄▅▆▇█"
    top = max(shares, default=0) or 1
    return "".join(levels[round(8 * s / top)] for s in shares[:20])

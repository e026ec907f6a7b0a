"""What a diagnosis could not see: small differences of few rows, features without values, bins that hold nearly all."""

from typing import Any

from flows.diagnosis.words.wording import counted, listed

_SMALL = 500  # rows of each, from which on small differences are found: table 3 of `siloflow reproduce shift-types`
_NAMED = 3  # features that values are missing of


def of_power(report: dict[str, Any]) -> list[str]:
    """By the printed rule, which knows no number of rows, chance shows itself as a difference."""
    quiet = [min(pair["rows"]) for pair in report["pairs"] if not pair["types"] and not pair["undetermined"]]
    if (
        report.get("pairs_of") == "groups"
    ):  # whose rows are many; silos were put into one as none was found between them
        shared = {client for group in report["groups"] if len(group) > 1 for client in group}
        quiet = [line["rows"][0] for line in report["rest"] if line["client"] in shared]
    if report["verdict"] == "paper" or not any(rows < _SMALL for rows in quiet):
        return []
    return [
        f"Fewer than {_SMALL} training rows of a silo show large differences alone: where none is found, small ones may be "
        "there."
    ]


def of_gaps(report: dict[str, Any]) -> list[str]:
    """Features that some silos have no value of or tell nothing of, and bins that are too wide to see anything."""
    gaps, said = report["gaps"], list[str]()
    label = "group of targets" if report["asked"]["targets"] else "label"
    for what, text in (
        ("absent", "{feature} has no value in any row that {silos} told of."),
        (
            "untold",
            f"Of {{feature}} {{silos}} told no value, since fewer than ten different rows of a {label} have one: its values "
            "are not compared there.",
        ),
    ):
        some = list(gaps[what].items())
        said += [text.format(feature=feature, silos=listed(silos)) for feature, silos in some[:_NAMED]]
        if len(some) > _NAMED:
            said.append(f"So it is with {counted(len(some) - _NAMED, 'more feature')}; report.json names them.")
    if gaps["crowded"] and not report["asked"]["pictures"]:
        said.append(
            f"Nearly all values of {listed(gaps['crowded'])} lie in one or two of {report['asked']['bins']} bins, as where "
            "a few are far out, and nothing is seen within these: under data.features declare low and high that hold most, "
            "or the kind categorical where there are few different ones."
        )
    return said

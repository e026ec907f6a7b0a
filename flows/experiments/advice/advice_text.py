"""Say in sentences what `siloflow advise` advises, and what is certain about it."""

import math
from collections.abc import Collection, Mapping, Sequence

import yaml

from flows.core.console.safe_text import duration
from flows.diagnosis.text.phrases import joined, listed
from flows.experiments.advice.candidates import ALIGN, POOLED, SHARED
from flows.experiments.advice.choose_method import Chosen, Differences, finite_differences, is_better, lead
from flows.experiments.advice.proof import Cost, Proof
from flows.experiments.advice.race import Race
from flows.experiments.comparison.client_gains import ALONE, losers_text
from flows.experiments.comparison.comparison_text import sentences_first, short_setting
from models.metrics.paired_difference import Difference
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.io.memory_and_disk import size
from tasks.tracking.result_types.advice_result import Advice
from tasks.tracking.result_types.comparison_result import ComparisonConclusions, MethodGains, TableRow

NAMES = {SHARED: "FedAvg", ALONE: "training alone"}
"""What the advice calls the references."""

_NOT_HELD_OUT = "how well it then does is not known, since no silo was held out"

_NAMED = 3
"""The most silos that a sentence names."""


def advice_lines(
    chosen: Chosen,
    quantity: TaskMetrics,
    given: Sequence[str],
    settings: Mapping[str, Sequence[str]],
    proof: Proof,
    comparison: ComparisonConclusions,
    costs: Mapping[str, Cost],
) -> list[str]:
    """Return what to do and what is certain about it, as sentences.

    Args:
        chosen: The method that is advised, and the silos that it leaves out.
        quantity: The metric.
        given: The settings that the advice gives.
        settings: Those that each proved method was given.
        proof: What the proof measured.
        comparison: What the comparison of the proof's runs concludes.
        costs: What a run of each proved method costs.
    """
    advised, outside, useless = chosen.advised, bool(chosen.outside), sentences_first(comparison)
    unmeasured = "Whether what follows is better than that was not measured."
    of_no_use = "So no model is of use yet. Of these, the advice would be:"
    lines = [*useless, *([unmeasured if outside else of_no_use] if useless else [])]
    lines += (
        _exclude(proof, chosen.proved, settings, quantity)
        if outside
        else [_use(advised, given), *_doubt(advised, finite_differences(proof.differences), quantity, chosen.matters)]
    )
    lines += _proved_lines(proof, chosen, quantity)
    lines += [] if outside else _losses_by(advised, comparison, quantity)
    lines += _costs(advised, {} if outside else costs)  # those of FedAvg with all silos
    if not useless and not outside:  # a score of FedAvg with all silos says nothing of that without some
        rows = {str(row["method"]): row for row in comparison["table"]}
        lines.append(_new_silo(_aligned_features(given), rows.get(advised, {}), quantity))
    return lines


def _proved_lines(proof: Proof, chosen: Chosen, quantity: TaskMetrics) -> list[str]:
    """Say what the proof measured: the difference of each pair, and what the ranges are."""
    excludes, proved, matters = bool(chosen.outside), chosen.proved, chosen.matters
    names = {**NAMES, SHARED: f"{NAMES[SHARED]} with all silos"} if excludes else NAMES
    measured_pairs = {pair: measured for pair, measured in proof.differences.items() if POOLED not in pair}
    lines = [_difference(*each, quantity, names, chosen.diverged, matters) for each in measured_pairs.items()]
    unknown = sum(math.isnan(measured.mean) for measured in measured_pairs.values())
    if proof.exclusion and not excludes and proved in proof.exclusion.differences:
        without = f"FedAvg without {listed(proof.exclusion.silos)}"
        measured = proof.exclusion.differences[proved]
        lines.append(_difference((without, proved), measured, quantity, matters=matters))
        unknown += math.isnan(measured.mean)
    differences = finite_differences(proof.differences)
    if is_better(POOLED, proved, differences, quantity, matters) and not excludes:
        lines.append(_pooled_gain(differences[POOLED, proved], quantity))
    ranges = len(lines) - unknown + excludes  # the sentence on silos that leave has a range of its own
    return [*lines, *([_legend(quantity, ranges)] if ranges else [])]


def _pooled_gain(difference: Difference, quantity: TaskMetrics) -> str:
    gain = _size(difference, quantity)
    would = f"would gain {gain}" if quantity.higher_is_better else f"would be better ({gain})"
    return f"Training on pooled rows {would}: ask whether rows may be pooled."


def _losses_by(advised: str, comparison: ComparisonConclusions, quantity: TaskMetrics) -> list[str]:
    """Say how many silos lose by the advised method against training alone; empty if that was not compared."""
    over_alone = comparison.get("gains")
    gains = over_alone["methods"].get(advised) if over_alone else None
    if not gains or not gains["compared"]:
        return []
    losers = losers_text(gains["worse"], gains["certain_worse"], gains["compared"], "silo", len(gains["untested"]))
    most = _greatest_losses(gains, quantity)
    return [f"With {NAMES.get(advised, advised)}, {losers}, against training alone{most}."]


def described(advice: Advice) -> list[str]:
    """Return the advice as lines: what to use and why, what the silos differ in, and what the race was."""
    sentences = " ".join(advice["diagnosis"]["sentences"][:2])
    diagnosis = [f"How the silos differ: {sentences}"] if sentences else []
    legs, dropped = advice["race"]["legs"], advice["race"]["dropped"]
    reasons = [why for name, why in dropped.items() if name in legs]
    worse, late = reasons.count("behind"), reasons.count("time")
    settings, last = len({*legs, *dropped}), advice["race"]["rungs"][-1]
    whole = sum(leg[0] == last and name not in dropped for name, leg in legs.items())
    failed = len(reasons) - worse - late
    counts = {
        f"{_were(worse)} dropped as clearly behind the leader, in the one seed of the race": worse,
        f"{_were(late)} dropped for a low rank or lack of time": late,
        "failed or diverged": failed,
        "never started for lack of time": settings - len(legs),
    }
    clauses = [f"{whole} trained to the end", *(f"{count} {what}" for what, count in counts.items() if count)]
    race = f"Of {settings} setting{'' if settings == 1 else 's'}, {joined(clauses)}."
    measured = any(proved["method"] == POOLED for proved in advice["proved"])
    late = any(n.startswith(f"{POOLED} ") and why == "time" for n, why in advice["race"]["dropped"].items())
    pooling = (
        ["What pooling the rows would gain is not known: training on them takes longer than these minutes allow."]
        if late and not measured
        else []
    )
    return [*advice["lines"], *diagnosis, race, *pooling]


def race_line(race: Race, quantity: TaskMetrics) -> str:
    """Return the outcome of a rung: the leader, and how many candidates train on."""
    ranking = race.ranking()
    rounds = race.rungs[race.rung - 1]
    if not ranking:
        return f"round {rounds}: no setting has a score"
    leg = race.legs[ranking[0].name]
    assert leg.score is not None, "candidates of the ranking have a score"
    score = f"{quantity.label} {quantity.number(quantity.gain(leg.score.value))}"
    onward = f"; {len(race.alive)} settings train on" if race.rung < len(race.rungs) else ""
    return f"round {rounds}: {ranking[0].method} leads with {score} on validation rows{onward}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _exclude(proof: Proof, proved: str, settings: Mapping[str, Sequence[str]], quantity: TaskMetrics) -> list[str]:
    """Return which silos should train alone, what the federation gains by that, and which model each silo then uses."""
    assert proof.exclusion is not None, "silos are excluded"
    silos, gain = proof.exclusion.silos, _size(proof.exclusion.differences[proved], quantity)
    over = NAMES.get(proved, proved)
    over = f"{over} {'of' if proved == ALONE else 'with'} all"
    better = f"gains {gain} over {over}" if quantity.higher_is_better else f"is better than {over} ({gain})"
    one, named = len(silos) == 1, listed(silos)
    shared, alone = settings.get(SHARED, ()), settings.get(ALONE, ())
    return [
        f"{_aligning(shared)}Train FedAvg{_others(shared)} without {named}, which train{'s' if one else ''} alone"
        f"{_others(alone)}: over all silos this {better}.",
        f"On validation rows {named} {'does' if one else 'do'} worse with FedAvg than alone: check whether units or codes "
        f"differ there. {named} then use{'s' if one else ''} {'its model' if one else 'their models'} of {ALONE}, the "
        f"others that of {SHARED}; `siloflow compare` scores both on all silos.",
    ]


def _aligning(settings: Sequence[str]) -> str:
    """Return the sentence on the features that are aligned first; empty if there are none."""
    aligned = _aligned_features(settings)
    return f"Align first: let each silo standardise {joined(aligned)} by its own rows. " if aligned else ""


def _others(settings: Sequence[str]) -> str:
    """Return the settings but the alignment, in brackets; empty if there are none."""
    others = [setting for setting in settings if not setting.startswith(f"{ALIGN}=")]
    return f" ({', '.join(map(short_setting, others))})" if others else ""


def _use(advised: str, settings: Sequence[str]) -> str:
    given = _others(settings)
    if advised == ALONE:
        return f"Train alone{given}."
    if aligning := _aligning(settings):
        return f"{aligning}Then FedAvg is enough{given}."
    if advised == SHARED:
        return f"FedAvg is enough{given}."
    return f"Use {advised}{given}."


def _doubt(advised: str, differences: Differences, quantity: TaskMetrics, matters: float) -> list[str]:
    """Return what is not proved about the advised method; empty if it is proved better than the simpler ones."""
    others = {method for pair in differences for method in pair} - {advised, POOLED}
    if not others:
        return ["It did best on validation rows of the race; test rows do not say whether it is better than others."]
    is_best = all(lead(other, advised, differences, quantity) <= 0 for other in others)
    if advised == ALONE:
        if all(is_better(ALONE, other, differences, quantity, matters) for other in others):
            return []
        did = "better" if is_best else "notably better"
        names = sorted(NAMES.get(method, method) for method in others)
        return [
            f"{names[0]} did not do {did} on average."
            if len(names) == 1
            else f"Neither {' nor '.join(names)} did {did} on average."
        ]
    simpler = [method for method in (ALONE, SHARED) if method != advised]
    certain = [method for method in simpler if is_better(advised, method, differences, quantity)]
    small = [NAMES[m] for m in certain if not is_better(advised, m, differences, quantity, matters)]
    unproved = [NAMES[method] for method in simpler if method not in certain]
    verdicts = {
        "is not certain": unproved,
        f"is certain, but by less than what matters ({quantity.amount(matters)})": small,
    }
    did = "best" if is_best else "nearly best"
    return [
        f"It did {did} on average; that it is better than {joined(methods)}, which "
        f"{'is' if len(methods) == 1 else 'are'} simpler, {verdict}."
        for verdict, methods in verdicts.items()
        if methods
    ]


def _difference(
    pair: tuple[str, str],
    measured: Difference,
    quantity: TaskMetrics,
    names: Mapping[str, str] = NAMES,
    diverged: Collection[str] = (),
    matters: float = 0.0,
) -> str:
    """Return which of two methods is better, and by how much; the one with the better mean comes first."""
    if math.isnan(measured.mean):
        first, second = (names.get(method, method) for method in pair)
        known = [names.get(method, method) for method in pair if method in diverged]
        whose = joined(known) if known else "one of them"
        return f"Whether {first} is better than {second} is not known: predictions of {whose} are not finite."
    mean, low, high = measured.mean, measured.low, measured.high
    if quantity.gain(mean) < 0:
        pair, mean, low, high = (pair[1], pair[0]), -mean, -high, -low
    better, worse = (names.get(method, method) for method in pair)
    text = quantity.difference(mean, low, high)
    if not measured.distinguishable:
        return f"Whether {better} is better than {worse} is not certain: {text}."
    if abs(mean) < matters:
        small = f"certain, but smaller than what matters ({quantity.amount(matters)})"
        return f"The difference of {better} to {worse} is {small}: {text}."
    return f"{better[0].upper() if pair[0] == ALONE else better[0]}{better[1:]} is better than {worse}: {text}."


def _legend(quantity: TaskMetrics, ranges: int) -> str:
    """Return what a point and a range are."""
    point = f"A point is a hundredth of {quantity.label}. " if quantity.axis(1.0) > 1 else ""
    holds = "The range holds the true difference" if ranges == 1 else "All ranges together hold the true differences"
    narrow = "it is" if ranges == 1 else "they are"
    return f"{point}{holds} with 95 % confidence; where results differ much from seed to seed, {narrow} too narrow."


def _size(measured: Difference, quantity: TaskMetrics) -> str:
    return quantity.difference(measured.mean, measured.low, measured.high)


def _aligned_features(settings: Sequence[str]) -> list[str]:
    """Return the features that a setting aligns."""
    values = [setting.partition("=")[2] for setting in settings if setting.startswith(f"{ALIGN}=")]
    return [feature for value in values for feature in yaml.safe_load(value)["features"]]


def _greatest_losses(gains: MethodGains, quantity: TaskMetrics) -> str:
    """Name the silos that lose most on average, as the end of a sentence; empty if none loses, or some do certainly."""
    differences = {silo: record["difference"] for silo, record in gains.get("clients", {}).items()}
    by_silo = {silo: quantity.gain(mean) for silo, mean in differences.items() if mean is not None}
    count = 0 if gains["certain_worse"] else gains["worse"]
    names = sorted(by_silo, key=lambda silo: by_silo[silo])[: min(count, _NAMED)]
    if not names:
        return ""
    if count > _NAMED:
        return f"; {joined(names)} lose most on average"
    return f"; {'it is' if count == 1 else 'these are'} {joined(names)}"


def _costs(advised: str, costs: Mapping[str, Cost]) -> list[str]:
    """Return what a run of the advised method costs, compared with FedAvg; empty if that is not known."""
    if advised not in costs:
        return []
    own, shared = costs[advised], costs.get(SHARED)
    traffic = f"a silo sends {size(round(own.sent))} and receives {size(round(own.received))}"
    if not own.sent and not own.received:
        traffic = "a silo sends and receives nothing"
    kept = ", and keeps weights or other state of its own" if own.keeps_state else ""
    if advised == ALONE and own.sent:
        amount = size(round(own.sent)) if own.sent >= 100 else f"{own.sent:.0f} bytes"
        traffic = f"a silo keeps its weights, and sends {amount} of metrics and common statistics"
        kept = ""
    line = f"Costs of a run of {NAMES.get(advised, advised)}: {duration(own.seconds)} on this machine; {traffic}{kept}."
    if advised == SHARED or shared is None:
        return [line]
    same = round(own.sent) == round(shared.sent) and round(own.received) == round(shared.received)
    others = "as much" if same else f"{size(round(shared.sent))} and {size(round(shared.received))}"
    return [f"{line} FedAvg: {duration(shared.seconds)}; {others}."]


def _new_silo(aligned: Sequence[str], row: TableRow, quantity: TaskMetrics) -> str:
    fresh = metric_value(row, f"fresh/{quantity.headline}")
    if fresh is not None:
        return f"Silos that took no part in training have {quantity.label} {quantity.number(fresh)} with it."
    if row.get("model") == "personal":
        return f"A new silo trains on its own rows before it has a model; {_NOT_HELD_OUT}."
    how = f"once it standardises {joined(aligned)} by its own rows" if aligned else "as it is"
    return f"A new silo can use the model {how}; {_NOT_HELD_OUT}."

"""What correlations of features add to the verdicts of pairs: tests, types, resolved doubts, the effect on prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtr

from models.diagnosis import chi_square as test
from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries
from models.diagnosis.client_summaries.rank_correlations import Correlations, index_pairs
from models.diagnosis.diagnose_pairs import REASONS, Findings, explaining_products, find_differences
from models.diagnosis.guarded_tests import ALPHA, LEAST_EFFECT, comparable_classes, effective_size, label_log_odds
from models.diagnosis.merged_tables import build_pairs
from models.diagnosis.name_shift_types import LIKELY, SURE, check_covariates, restrict_to
from models.diagnosis.pseudo_rows import PseudoClients, SharedModelLoss, select_for_pseudo_rows

_CORRELATION_ALPHA = ALPHA / 4
"""The level over all pairs of features: a quarter of the other hypotheses', since correlations show differences early."""

_LIMIT = 0.999  # of a correlation, so that Fisher's z is finite


class CorrelationEvidence(NamedTuple):
    """Results for pairs of clients and pairs of features, (clients' pairs, feature pairs) each.

    differ: whether correlations within classes differ; together: whether those of all rows differ as well; by_class:
    whether the difference depends on the class; effects: φ of the difference within classes; chance: (clients'
    pairs,) p-value over all pairs of features; compared: bool.
    """

    differ: np.ndarray
    together: np.ndarray
    by_class: np.ndarray
    effects: np.ndarray
    chance: np.ndarray
    compared: np.ndarray


def compare_correlations(
    correlations: Correlations, labels: np.ndarray, first: np.ndarray, second: np.ndarray
) -> CorrelationEvidence:
    """Compare clients first[i] and second[i] by Wald tests of Fisher's z.

    labels: (clients, classes) rows of each class, NaN if not reported.
    """
    labels = np.nan_to_num(labels)
    z, weight = _correlation_difference(correlations, slice(0, -1), labels, first, second)
    rows = np.stack([labels[first], labels[second]], 1)
    squares, classes = z**2 * weight, weight > 0
    count = classes.sum(-1)
    within = (squares.sum(-1), count)
    size = effective_size((rows[:, None] * classes[:, :, None]).sum(-1))
    total_weight = weight.sum(-1)
    mean = np.divide((z * weight).sum(-1), total_weight, out=np.zeros_like(total_weight), where=total_weight > 0)
    contrast = (np.maximum(squares.sum(-1) - mean**2 * total_weight, 0.0), np.maximum(count - 1, 0))
    all_rows = labels.sum(-1, keepdims=True)
    total_difference, overall_weight = _correlation_difference(correlations, slice(-1, None), all_rows, first, second)
    overall = ((total_difference**2 * overall_weight)[..., 0], (overall_weight[..., 0] > 0).astype(np.int64))
    hypotheses = np.maximum(correlations.values.shape[1], 1)

    def rejected(result: test.ChiSquare, hypotheses: int | np.ndarray) -> np.ndarray:
        return (test.p_value(result) * hypotheses < _CORRELATION_ALPHA) & (
            test.effect_size(result, size) >= LEAST_EFFECT
        )

    differ = rejected(within, hypotheses)
    chance = np.minimum(test.p_value(within).min(-1, initial=1.0) * hypotheses, 1.0)
    effects = test.effect_size(within, size)
    return CorrelationEvidence(
        differ, differ & rejected(overall, 1), differ & rejected(contrast, 1), effects, chance, count > 0
    )


def _correlation_difference(
    correlations: Correlations, columns: slice, rows: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return differences of z and their inverse variances, (pairs, feature pairs, columns); 0 if not compared.

    The variance of both clients is pooled, since each is large by chance where its correlation is. It is at least that
    of independent features, which also holds for few rows of heavy tails. rows: (clients, columns).
    """
    r = np.clip(correlations.values[..., columns], -_LIMIT, _LIMIT)
    z, scaled = np.arctanh(r), correlations.variances[..., columns] / (1 - r**2) ** 2 * rows[:, None]
    own_rows, other_rows = (np.maximum(rows[clients][:, None], 4.0) for clients in (first, second))
    pooled = (scaled[first] * own_rows + scaled[second] * other_rows) / (own_rows + other_rows)
    total = np.maximum(pooled, 1.0) * (1 / (own_rows - 3) + 1 / (other_rows - 3))
    difference = z[first] - z[second]
    compared = np.isfinite(difference) & np.isfinite(total)
    return np.where(compared, difference, 0.0), np.where(compared, 1 / total, 0.0)


_FEATURE, _LABEL, _CONCEPT = range(3)
_BUDGET = 1000  # of features times classes times pairs whose shared models are fitted
_EFFECT, _LOG_EFFECT = 0.02, 0.03
"""The least loss of accuracy, and of log loss in nats a row, that is an effect on prediction."""


class FeaturePair(NamedTuple):
    """Two features whose correlations differ between two clients, by indices; φ of the difference within classes.

    of_first, of_second: rank correlations of both clients, (classes + 1,), the last of all rows; NaN if not reported.
    """

    features: tuple[int, int]
    effect: float
    of_first: np.ndarray
    of_second: np.ndarray


@dataclass(frozen=True, eq=False)
class Refinement:
    """What correlations show of pairs of clients, in the order of the findings.

    together: feature pairs that go together differently in the inputs; interactions: feature pairs whose correlation
    differs by class only, so that the rule differs in how both act together, where no feature alone shows another rule;
    resolved: (pairs,) bool, a change of rule was removed because the inputs explain it; second_look: (pairs,) bool,
    models of the clients would decide whether the inputs explain a change of rule, and are not queried anyway; losses:
    by pair the loss at both clients, None if not estimated.
    """

    together: tuple[tuple[FeaturePair, ...], ...]
    interactions: tuple[tuple[FeaturePair, ...], ...]
    resolved: np.ndarray
    second_look: np.ndarray
    losses: tuple[tuple[SharedModelLoss, SharedModelLoss] | None, ...]


def effect_on_prediction(losses: Sequence[SharedModelLoss] | None) -> Literal["seen", "none seen", "unknown"] | None:
    """Grade the effect of a difference on prediction; None if it was not estimated.

    Accuracy hardly changes where one class is rare, so the log loss decides as well.
    """
    if losses is None:
        return None
    if any(
        (loss.low > 0 and loss.loss >= _EFFECT)
        or (loss.log_loss >= _LOG_EFFECT and loss.log_loss > 3 * loss.log_loss_error)
        for loss in losses
    ):
        return "seen"
    none_seen = all(
        loss.high < _EFFECT and loss.log_loss < max(_LOG_EFFECT, 2 * loss.log_loss_error) for loss in losses
    )
    return "none seen" if none_seen else "unknown"


def refine_findings(
    findings: Findings,
    summaries: Summaries,
    layout: Layout,
    correlations: Correlations,
    targets: np.ndarray | None = None,
    resolve: bool = True,
) -> tuple[Findings, Refinement]:
    """Add the evidence of correlations to findings on pairs of these clients; no noise.

    targets: in a regression moments of each client's targets, (clients, 5), which decide pairs without a common group;
    resolve: whether to remove changes of rule that inputs explain, by pseudo-rows and not by models of real rows.
    """
    findings = findings if targets is None else _compare_targets(findings, targets)
    findings = findings if layout.targets else _compare_thresholds(findings, summaries, layout, correlations)
    first, second = findings.first, findings.second
    evidence = compare_correlations(correlations, summaries.labels, first, second)
    asked = evidence.compared.any(-1)
    chance = np.where(asked, np.minimum(1.5 * findings.chance, np.minimum(3 * evidence.chance, 1.0)), findings.chance)
    differ = find_differences(chance)
    found = evidence.differ & (differ & ~findings.verdicts.undetermined)[:, None]
    before = findings.verdicts.types
    # another rule changes correlations within classes, and leaves those of all rows as they are
    both_others = before[:, _LABEL] & before[:, _CONCEPT]
    together = found & evidence.together & ~(evidence.by_class & both_others[:, None])
    by_class = found & evidence.by_class & ~evidence.together
    moved_together: np.ndarray = np.any(together, axis=-1)
    by_class &= ~(before[:, _FEATURE] | before[:, _CONCEPT] | moved_together)[:, None]
    types = before.copy()
    types[:, _FEATURE] |= moved_together
    types[:, _CONCEPT] |= np.any(by_class, axis=-1)
    parts, inputs = _with_effects(findings, correlations, evidence, together, by_class)
    refined = replace(
        findings,
        verdicts=restrict_to(replace(findings.verdicts, types=types), differ),
        chance=chance,
        parts=parts,
        inputs=inputs,
    )
    products = _interactions_in_doubt(refined, findings, correlations)
    pseudo = PseudoClients(*select_for_pseudo_rows(summaries, layout, correlations), products)
    resolved = np.zeros(len(types), bool)
    if resolve:
        refined, resolved = _resolve(refined, findings, pseudo, correlations, moved_together & ~before[:, _FEATURE])
    types, more = refined.verdicts.types, {*_products(correlations, by_class)} - {*products}
    pseudo = replace(pseudo, products=(*products, *sorted(more))) if more else pseudo
    return replace(refined, rules=_rules(refined, pseudo, correlations.features)), Refinement(
        _describe(correlations, evidence, together, first, second),
        _describe(correlations, evidence, by_class, first, second),
        resolved,
        types[:, _FEATURE] & types[:, _CONCEPT] & resolve,
        _losses(refined, pseudo),
    )


def _compare_thresholds(
    findings: Findings, summaries: Summaries, layout: Layout, correlations: Correlations
) -> Findings:
    """Judge pairs of label shift alone again by reported correlations: label shift, another threshold, or either.

    Only pairs whose inputs did not differ are judged.
    """
    types, hedged = findings.verdicts.types.copy(), findings.verdicts.label_or_concept.copy()
    judged = np.flatnonzero(types[:, _LABEL] & (types.sum(-1) == 1) & ~findings.moved & ~findings.verdicts.margins_only)
    if not len(judged) or not summaries.counts.shape[2]:
        return findings
    first, second = findings.first[judged], findings.second[judged]
    pairs = build_pairs(summaries, layout, first, second)
    counts = pairs.counts
    within = counts[..., :-1] * comparable_classes(counts)[:, :, None, None]
    between = np.full((len(judged), counts.shape[1], counts.shape[1]), np.nan)
    one, other = (correlations.features[members] for members in index_pairs(len(correlations.features)))
    of_pair = (correlations.values[first, :, -1] + correlations.values[second, :, -1]) / 2
    between[:, one, other] = between[:, other, one] = of_pair
    odds = label_log_odds(within, pairs.labels, between)
    types[judged[odds < -LIKELY]] = np.arange(3) == _CONCEPT
    hedged[judged] = (odds >= -LIKELY) & (odds < SURE)
    return replace(findings, verdicts=replace(findings.verdicts, types=types, label_or_concept=hedged))


def _compare_targets(findings: Findings, targets: np.ndarray) -> Findings:
    """Compare mean targets of the pairs without a common group of targets, by Welch's test.

    If inputs agree and targets do not, the rule differs. If inputs differ as well, only the margins are known to.
    """
    apart = findings.verdicts.margins_only | (findings.verdicts.undetermined & (findings.why == REASONS.index("apart")))
    rows, mean, deviation = np.moveaxis(targets[:, :3], -1, 0)
    one, other = findings.first, findings.second
    variance = deviation**2 / np.maximum(rows, 1)
    difference = np.abs(mean[one] - mean[other])
    of_difference = np.maximum(variance[one] + variance[other], 1e-300)
    spread = variance**2 / np.maximum(rows - 1, 1)
    freedom = of_difference**2 / np.maximum(spread[one] + spread[other], 1e-300)  # Welch and Satterthwaite
    chance = 2 * stdtr(np.maximum(freedom, 1.0), -difference / np.sqrt(of_difference))
    large = difference >= 2 * LEAST_EFFECT * np.maximum(deviation[one], deviation[other])
    moved = apart & (chance < ALPHA) & large & np.isfinite(difference)
    verdicts, types = findings.verdicts, findings.verdicts.types.copy()
    types[moved] = np.stack([findings.moved, findings.moved, ~findings.moved], -1)[moved]
    verdicts = replace(
        verdicts, types=types, undetermined=verdicts.undetermined & ~moved, margins_only=verdicts.margins_only | moved
    )
    return replace(
        findings,
        verdicts=verdicts,
        labels=findings.labels | moved,
        chance=np.where(moved, np.minimum(findings.chance, 2 * chance), findings.chance),
    )


def _with_effects(
    findings: Findings,
    correlations: Correlations,
    evidence: CorrelationEvidence,
    together: np.ndarray,
    by_class: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts and inputs of findings, at least φ of each feature's correlations that differ."""
    parts, inputs = findings.parts.copy(), findings.inputs.copy()
    for members in index_pairs(len(correlations.features)):
        features = correlations.features[members]
        for pair, column in np.argwhere(together | by_class):
            effect, feature = evidence.effects[pair, column], features[column]
            parts[pair, feature] = max(parts[pair, feature], effect)
            if together[pair, column]:
                inputs[pair, feature] = max(inputs[pair, feature], effect)
    return parts, inputs


def _resolve(
    refined: Findings, before: Findings, pseudo: PseudoClients, correlations: Correlations, newly: np.ndarray
) -> tuple[Findings, np.ndarray]:
    """Remove changes of rule and of labels that inputs explain: the findings, and where a rule was removed, (pairs,).

    newly: (pairs,) bool, only correlations show that inputs differ.
    """
    types, parts = refined.verdicts.types.copy(), refined.parts.copy()
    concept = types[:, _FEATURE] & types[:, _CONCEPT] & before.verdicts.types[:, _CONCEPT]
    other = np.setdiff1d(np.arange(parts.shape[1]), correlations.features)
    concept &= ~(before.odds[:, other] >= LEAST_EFFECT).any(-1)  # pseudo-rows do not have these features
    resolved = np.zeros(len(types), bool)
    for pair in np.flatnonzero(concept)[: 3 * _most_pairs(pseudo)].tolist():
        clients = int(refined.first[pair]), int(refined.second[pair])
        tables = [[pseudo.predicted(client, pseudo.model((of,))) for of in clients] for client in clients]
        both = pseudo.summaries.take(np.array(clients))
        check = check_covariates(both, pseudo.layout, np.array(tables), np.array([0]), np.array([1]))
        types[pair] = check.unexplained(types[[pair]])[0]
        resolved[pair] = check.rules[0]
        newly[pair] |= resolved[pair]
    parts[resolved] = refined.inputs[resolved]
    labels = types[:, _FEATURE] & types[:, _LABEL] & ~types[:, _CONCEPT] & newly
    for pair in np.flatnonzero(labels)[: 3 * _most_pairs(pseudo)].tolist():
        types[pair, _LABEL] = not _predicts_labels(pseudo, int(refined.first[pair]), int(refined.second[pair]))
    return replace(refined, verdicts=replace(refined.verdicts, types=types), parts=parts), resolved


def _interactions_in_doubt(
    refined: Findings, before: Findings, correlations: Correlations
) -> tuple[tuple[int, int], ...]:
    """Return the features that may act together where inputs and rule seem to differ, by position in `correlations`."""
    types = refined.verdicts.types
    doubtful = types[:, _FEATURE] & types[:, _CONCEPT] & before.verdicts.types[:, _CONCEPT]
    position = {feature: index for index, feature in enumerate(correlations.features.tolist())}
    found = explaining_products(refined, np.flatnonzero(doubtful))
    return tuple((position[one], position[other]) for one, other in found if {one, other} <= position.keys())


def _predicts_labels(pseudo: PseudoClients, first: int, second: int) -> bool:
    """Return whether each client's model predicts how frequent labels are at the other."""
    for client, of in ((first, second), (second, first)):
        rows = pseudo.rows(client)
        seen = np.bincount(rows.y, rows.weight, pseudo.layout.classes)
        predicted = pseudo.predicted(client, pseudo.model((of,)))[0].sum(0)
        predicted *= pseudo.rows(of).weight.sum() / max(predicted.sum(), 1e-12)  # as uncertain as the model's rows
        counts = np.stack([seen, predicted])
        result = test.pearson(counts)
        differ = test.p_value(result) < ALPHA
        if differ and test.effect_size(result, effective_size(counts.sum(-1))) >= LEAST_EFFECT:
            return False
    return True


def _describe(
    correlations: Correlations,
    evidence: CorrelationEvidence,
    selected: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
) -> tuple[tuple[FeaturePair, ...], ...]:
    """Describe the selected pairs of features of each pair of clients, the largest effect first."""
    one, other = (correlations.features[members] for members in index_pairs(len(correlations.features)))
    described: list[list[FeaturePair]] = [[] for _ in first]
    for pair, column in np.argwhere(selected).tolist():
        values = (correlations.values[clients[pair], column] for clients in (first, second))
        features = int(one[column]), int(other[column])
        described[pair].append(FeaturePair(features, float(evidence.effects[pair, column]), *values))
    return tuple(tuple(sorted(pairs, key=lambda pair: -pair.effect)) for pairs in described)


def _products(correlations: Correlations, by_class: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return the pairs of features that act together differently in some pair of clients, by position."""
    one, other = index_pairs(len(correlations.features))
    columns = np.flatnonzero(by_class.any(0)).tolist()
    return tuple((int(one[column]), int(other[column])) for column in columns)


def _most_pairs(pseudo: PseudoClients) -> int:
    return max(1, _BUDGET // max(1, len(pseudo.layout.names) * pseudo.layout.classes))


def _losses(findings: Findings, pseudo: PseudoClients) -> tuple[tuple[SharedModelLoss, SharedModelLoss] | None, ...]:
    """Estimate what a shared model loses at both clients of the pairs that differ most, as many as the budget allows."""
    losses: list[tuple[SharedModelLoss, SharedModelLoss] | None] = [None] * len(findings.first)
    labels = np.nan_to_num(pseudo.summaries.labels)
    known = (labels >= LEAST_ROWS).sum(-1) > 1
    differ = findings.verdicts.types.any(-1) & known[findings.first] & known[findings.second]
    for pair in _largest(findings, pseudo, differ):
        clients = int(findings.first[pair]), int(findings.second[pair])
        first, second = (pseudo.loss(client, clients) for client in clients)
        losses[pair] = None if first is None or second is None else (first, second)
    return tuple(losses)


def _rules(findings: Findings, pseudo: PseudoClients, features: np.ndarray) -> np.ndarray:
    """Return `Findings.rules` with those given all other features, of as many pairs as the budget allows.

    features: those that pseudo-rows have.
    """
    rules = findings.rules.copy()
    for pair in _largest(findings, pseudo, findings.verdicts.types[:, _CONCEPT]):
        effects = pseudo.rule_effects((int(findings.first[pair]), int(findings.second[pair])))
        if np.isfinite(effects).all():
            rules[pair, features] = effects
    return rules


def _largest(findings: Findings, pseudo: PseudoClients, selected: np.ndarray) -> list[int]:
    """Return the selected pairs, (pairs,) bool, that differ most: as many as the budget allows."""
    order = np.argsort(-np.where(selected, findings.parts.max(-1, initial=0.0), -1.0), kind="stable")
    return order[: min(_most_pairs(pseudo), int(selected.sum()))].tolist()

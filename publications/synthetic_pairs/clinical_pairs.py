"""Define pairs of hospitals with a known shift: what a ward, a laboratory, a coder or a referral changes.

A hospital has eight features and an outcome by a logistic rule. `CLINICAL` names the true types of each kind, as derived
from the distribution that generates it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from publications.synthetic_pairs.generators import KnownPair, Rows, Size

FEATURES = ("age", "systolic", "creatinine", "urea", "crp", "sex", "smoker", "ward")
CLINICAL_CATEGORIES = np.array([0, 0, 0, 0, 0, 2, 2, 4])
PREVALENCE = (0.1, 0.3)
VISITS = 8

_WARDS = (0.35, 0.3, 0.2, 0.15)
_OF_WARDS = np.array([0.0, 0.3, -0.3, 0.6])  # log odds
_CODED_WARD = 2  # the ward that codes differently
_REFERRED_AGE = 2.5  # deviations of age, from which on a referral is no more likely
_POOL = 20000  # rows over which a distribution is integrated
_FEW = 4.5  # expected rows of the rare class in the smaller silo
_STEADY = 0.7  # share of a laboratory value's variance that is the patient's own


@dataclass(frozen=True)
class Hospital:
    """The distribution of one silo.

    The rule is logistic in standardised features. Steps apply in the order of the fields below: patients, rule, selection of
    patients, coding of the outcome, recording of values.

    Attributes:
        older: Years that are added to age.
        spread: A factor of the deviations of creatinine and urea.
        correlation: The correlation of creatinine and urea.
        heavy: Whether crp and systolic pressure have heavy tails.
        visits: Rows of each patient, with the patient's outcome and laboratory values that vary.
        intercept: The intercept of the rule.
        weight: The weight of creatinine in the rule.
        interaction: The weight of sex times systolic pressure; if not 0, neither has a weight of its own, and both are
            independent of all other features.
        severe: The intercept of the rule by which positives are of class 2 and not 1; None if there are two classes.
        odds: By class the factor by which its patients are selected; P(x | y) stays.
        referral: The log odds of selection by a deviation of age; P(y | x) stays.
        missed: The share of positives that are coded negative.
        noise: The share of outcomes in one ward that are coded as the opposite.
        gains: By feature a factor and an offset of its recorded values.
        missing: By feature the share of values that are missing at random.
    """

    older: float = 0.0
    spread: float = 1.0
    correlation: float = 0.7
    heavy: bool = False
    visits: int = 1
    intercept: float = 0.0
    weight: float = 0.6
    interaction: float = 0.0
    severe: float | None = None
    odds: tuple[float, float, float] = (1.0, 1.0, 1.0)
    referral: float = 0.0
    missed: float = 0.0
    noise: float = 0.0
    gains: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)

    def draw(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw rows: x (rows, features) with NaN for missing values, y (rows,), and the patient of each row (rows,)."""
        x, y, patient = self._selected(rng, rows)
        y = np.where((y > 0) & (rng.random(rows) < self.missed), 0, y)
        opposite = (x[:, FEATURES.index("ward")] == _CODED_WARD) & (rng.random(rows) < self.noise)
        y = np.where(opposite, np.where(y > 0, 0, 1), y)
        for name, (factor, offset) in self.gains.items():
            x[:, FEATURES.index(name)] = factor * x[:, FEATURES.index(name)] + offset
        for name, share in self.missing.items():
            x[rng.random(rows) < share, FEATURES.index(name)] = np.nan
        return x, y, patient

    def log_odds(self, x: np.ndarray) -> np.ndarray:
        """Return the log odds of a positive outcome before it is coded, (rows,), from complete features as measured."""
        age, systolic, creatinine, urea, crp, sex, smoker, ward = _standardised(x)
        log_odds = 0.7 * age + self.weight * creatinine + 0.4 * urea + 0.5 * crp + 0.5 * smoker
        log_odds += _OF_WARDS[ward.astype(np.int64) - 1]
        if self.interaction:
            return self.intercept + log_odds + self.interaction * systolic * np.where(sex == 1, 1.0, -1.0)
        return self.intercept + log_odds + 0.4 * systolic + 0.3 * (sex == 1)

    def _selected(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw as many patients as fill the rows, each kept by its class and age."""
        if set(self.odds) == {1.0} and not self.referral:
            return self._patients(rng, rows)
        keep = np.array(self.odds) / max(self.odds)
        parts: list[Rows] = []
        while sum(len(y) for _, y in parts) < rows:
            x, y, _ = self._patients(rng, rows)
            age = np.minimum(_standardised(x)[0], _REFERRED_AGE)
            kept = rng.random(rows) < keep[y] * np.exp(self.referral * (age - _REFERRED_AGE))
            parts.append((x[kept], y[kept]))
        x, y = (np.concatenate(columns)[:rows] for columns in zip(*parts, strict=True))
        return x, y, np.arange(rows)

    def _patients(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        patients = -(-rows // self.visits)
        own, fixed, chance = rng.normal(size=(patients, 5)), rng.random((patients, 3)), rng.random((patients, 2))
        wards = np.searchsorted(np.cumsum(_WARDS[:-1]), fixed[:, 2], side="right") + 1.0
        codes = np.stack([1.0 + (fixed[:, 0] < 0.5), 1.0 + (fixed[:, 1] < 0.25), wards], -1)
        tails = rng.standard_t(2, (patients, 2)) if self.heavy else None
        x = self._measured(own, codes, tails)
        y = (chance[:, 0] < expit(self.log_odds(x))).astype(np.int64)
        if self.severe is not None:
            age, crp = _standardised(x)[[0, 4]]
            y += (y == 1) & (chance[:, 1] < expit(self.severe + 0.8 * age - 0.6 * crp))
        if self.visits == 1:
            return x, y, np.arange(rows)
        patient = np.repeat(np.arange(patients), self.visits)[:rows]
        varying = np.sqrt(_STEADY) * own[patient] + np.sqrt(1 - _STEADY) * rng.normal(size=(rows, 5))
        varying[:, 0] = own[patient, 0]  # age
        return self._measured(varying, codes[patient], None), y[patient], patient

    def _measured(self, normal: np.ndarray, codes: np.ndarray, tails: np.ndarray | None) -> np.ndarray:
        """Return features as a hospital records them, rounded, from standard normals (rows, 5)."""
        age = np.clip(np.round(62 + 14 * normal[:, 0] + self.older), 18, 105)
        tie = 0.0 if self.interaction else 0.3
        pressure = tie * (age - 62) / 14 + np.sqrt(1 - tie**2) * normal[:, 1]
        across = self.correlation * normal[:, 2] + np.sqrt(1 - self.correlation**2) * normal[:, 3]
        crp = normal[:, 4]
        if tails is not None:
            pressure, crp = pressure + 0.3 * tails[:, 0], crp + 0.3 * tails[:, 1]
        return np.stack(
            [
                age,
                np.round(135 + 18 * pressure),
                np.maximum(np.round(1.2 + 0.3 * self.spread * normal[:, 2], 2), 0.1),
                np.maximum(np.round(42 + 12 * self.spread * across), 2.0),
                np.round(np.exp(np.minimum(1.8 + crp, 9.0)), 1),
                *codes.T,
            ],
            -1,
        )


def _standardised(x: np.ndarray) -> np.ndarray:
    """Return numbers in units of the usual hospital, and categories as they are: (features, rows)."""
    age, systolic, creatinine, urea, crp, sex, smoker, ward = x.T
    logarithm = np.log(np.maximum(crp, 0.05)) - 1.8
    numbers = (age - 62) / 14, (systolic - 135) / 18, (creatinine - 1.2) / 0.3, (urea - 42) / 12, logarithm
    return np.stack([*numbers, sex, smoker - 1, ward])


@dataclass(frozen=True)
class Kind:
    """A kind of pair.

    Attributes:
        truth: The true types; empty of alike silos.
        also: Types that may be named with the true ones, since their part of the distribution moves as well; alone they are
            wrong.
        both: Properties of both hospitals.
        second: Properties of one of them.
        more: Added to the prevalence of one of them by its intercept.
        prevalence: The least and greatest prevalence, drawn for each pair.
        three: Whether every other pair has three classes.
        rare: Whether the last class has few rows in the smaller silo.
        seen_from: Rows of the larger silo from which the known likelihood ratio distinguishes the pair from no shift,
            and from another type with the same P(y), in 95 % of pairs; 0 if no count of one feature with the class differs.
    """

    truth: frozenset[str]
    also: frozenset[str] = frozenset()
    both: Mapping[str, Any] = field(default_factory=dict)
    second: Mapping[str, Any] = field(default_factory=dict)
    more: float = 0.0
    prevalence: tuple[float, float] = PREVALENCE
    three: bool = False
    rare: bool = False
    seen_from: int = 1

    @property
    def unseen_allowed(self) -> bool:
        """Whether to name nothing is no fault, since counts of single features with the class are alike."""
        return not self.seen_from

    def hospitals(self, rng: np.random.Generator, rows: Size, three: bool) -> tuple[Hospital, Hospital]:
        """Draw the prevalence, and return the distributions of the usual hospital and of the other."""
        prevalence = rng.uniform(*self.prevalence)
        usual = Hospital(**self.both)
        if self.rare and not three:
            prevalence = _FEW / min(rows)
        usual = replace(usual, intercept=_intercept(bool(usual.interaction), prevalence))
        if three:
            usual = replace(usual, severe=_severe(_FEW / min(rows) / prevalence) if self.rare else -0.3)
        other = replace(usual, **self.second)
        if self.more:
            other = replace(other, intercept=_intercept(False, prevalence + self.more))
        return usual, other


def clinical_pair(rng: np.random.Generator, name: str, rows: Size, number: int, clients: int = 2) -> KnownPair:
    """Draw a pair of a kind, of which either hospital may be the usual one, or a federation of alike hospitals.

    Args:
        rng: The random stream.
        name: The kind; of alike hospitals if there are more than two.
        rows: The rows of both hospitals; of more than two the rows of the first and the last, with equal ratios between.
        number: The number of the pair; of some kinds odd numbers have three classes.
        clients: The number of hospitals.
    """
    kind = CLINICAL[name]
    three = kind.three and number % 2 == 1
    hospitals = kind.hospitals(rng, rows, three)
    if rng.random() < 0.5:
        hospitals = hospitals[::-1]
    sizes = np.round(np.geomspace(*rows, clients)).astype(int).tolist()
    drawn = [each.draw(rng, of) for each, of in zip((*hospitals, *hospitals[:1] * (clients - 2)), sizes, strict=True)]
    units = tuple(patient for _, _, patient in drawn) if hospitals[0].visits > 1 else None
    return KnownPair(tuple((x, y) for x, y, _ in drawn), 2 + three, CLINICAL_CATEGORIES, kind.truth, units=units)


@lru_cache(maxsize=2)
def _pool(interaction: bool) -> np.ndarray:
    """Return log odds without an intercept of many patients of the usual hospital, (rows,)."""
    hospital = Hospital(interaction=CLINICAL["interaction"].both["interaction"] if interaction else 0.0)
    x, _, _ = hospital.draw(np.random.default_rng(0), _POOL)
    return hospital.log_odds(x)


def _intercept(interaction: bool, prevalence: float) -> float:
    """Return the intercept by which this share of patients is positive."""
    pool = _pool(interaction)
    return float(brentq(lambda intercept: expit(intercept + pool).mean() - prevalence, -20.0, 20.0))


def _severe(share: float) -> float:
    """Return the intercept by which about this share of positives is severe."""
    x, y, _ = Hospital(intercept=-2.5).draw(np.random.default_rng(0), _POOL)
    age, crp = _standardised(x[y == 1])[[0, 4]]
    return float(brentq(lambda intercept: expit(intercept + 0.8 * age - 0.6 * crp).mean() - share, -20.0, 20.0))


def _kind(truth: str, also: str = "none", **more: Any) -> Kind:
    types, others = (frozenset(names.split("+")) - {"none"} for names in (truth, also))
    return Kind(types, others, **more)


CLINICAL: Mapping[str, Kind] = {
    # one distribution of x and y for both silos: no type
    "alike": _kind("none", three=True),
    # the number of rows is no part of the distribution
    "alike, unequal": _kind("none"),
    # values are missing at the same rates at both: the distribution of recorded values is one
    "alike, missing values": _kind("none", both={"missing": {"creatinine": 0.15, "crp": 0.1}}),
    # heavy tails at both: one distribution
    "alike, heavy tails": _kind("none", both={"heavy": True}),
    # one distribution; the last class has a share of 4.5 rows in the smaller silo
    "alike, rare class": _kind("none", three=True, rare=True),
    # one distribution of patients and of their visits; rows are not independent
    "alike, visits": _kind("none", both={"visits": VISITS}),
    # patients are selected by y alone: P(y) differs, P(x | y) is the same
    "prevalence": _kind("label", second={"odds": (1.0, 2.5, 2.5)}, prevalence=(0.12, 0.25), seen_from=700),
    "prevalence, unequal": _kind("label", second={"odds": (1.0, 2.5, 2.5)}, prevalence=(0.12, 0.25), seen_from=1800),
    "prevalence, three classes": _kind(
        "label", three=True, second={"odds": (1.0, 2.0, 3.5)}, prevalence=(0.12, 0.25), seen_from=700
    ),
    # selected by y and by age: P(y) differs, and P(x | y) moves by one factor in all classes, so that odds ratios of x and y
    # are the same
    "referral": _kind("feature+label", second={"odds": (1.0, 2.0, 2.0), "referral": 0.6}),
    # P(x) is the same, the intercept of P(y | x) moves: the threshold. P(y) moves with it; P(x | y) does too, so that label
    # alone is wrong
    "threshold, more positives": _kind("concept", "label", more=0.05, prevalence=(0.2, 0.3), seen_from=5000),
    # the same, with twelve points for five
    "threshold, many more positives": _kind("concept", "label", more=0.12, prevalence=(0.2, 0.3), seen_from=1000),
    # P(x) is the same and P(1 | x) is 0.8 of what it was
    "threshold, positives missed": _kind(
        "concept", "label", second={"missed": 0.2}, prevalence=(0.2, 0.3), seen_from=5000
    ),
    # the same, with a half for a fifth
    "threshold, many positives missed": _kind(
        "concept", "label", second={"missed": 0.5}, prevalence=(0.2, 0.3), seen_from=1000
    ),
    # P(x) is the same and P(y | x) moves towards a half in one ward; P(y) moves with it
    "coding practice": _kind("concept", "label", second={"noise": 0.3}, seen_from=500),
    # crp in mg/dL for mg/L, after the outcome: mapped back, P(y | x) is the same. Of values as recorded it differs, so that
    # concept may be named too, not alone
    "unit": _kind("feature", "concept", second={"gains": {"crp": (0.1, 0.0)}}),
    # mapped back, P(y | x) is the same, as for the unit
    "device offset": _kind("feature", "concept", second={"gains": {"systolic": (1.0, 8.0)}}),
    "device gain": _kind("feature", "concept", second={"gains": {"urea": (1.2, 0.0)}}),
    # P(x) with `missing` as a value differs; where the value is there, P(y | x) is the same, and P(y) is
    "missing at one silo": _kind("feature", second={"missing": {"creatinine": 0.2}}),
    # P(x) differs before the outcome, the rule is the same. P(y) moves by about six points at 20 %: label may be named too
    "age": _kind("feature", "label", second={"older": 8.0}),
    # as for age; P(y) moves little
    "correlated spread": _kind("feature", "label", second={"spread": 1.5}),
    # every P(x_j) is the same, P(x_2, x_3) differs, the rule is the same. P(y) and each P(y | x_j) follow: label may be
    # named too; concept is false
    "turned correlation": _kind("feature", "label", second={"correlation": -0.7}),
    # P(x) is the same, P(y | x) differs; P(y) follows
    "other weight": _kind("concept", "label", second={"weight": -0.2}, seen_from=600),
    # P(x) is the same, P(y | x) differs in sign of the product of two symmetric, independent features without other effects:
    # P(y), every P(y | x_j) and every P(x_i, x_j) are the same, only P(y | sex, systolic) differs
    "interaction": _kind("concept", both={"interaction": 0.8}, second={"interaction": -0.8}, seen_from=0),
}
"""The kinds of pairs by name, each with its truth and the reason."""

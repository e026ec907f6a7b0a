"""The closed sets of words in a diagnosis. Reports are read without what computes them, so nothing is imported here."""

from typing import Literal

ShiftType = Literal["feature", "label", "concept"]

Grade = Literal["negligible", "moderate", "significant", "critical"]

Reason = Literal["rows", "unreported", "apart", "rough", "constant"]

InsideTest = Literal["labels", "inputs_in_classes"]

ChangeKind = Literal["label", "absent", "mean", "spread", "constant", "target", "category", "missing", "rule"]

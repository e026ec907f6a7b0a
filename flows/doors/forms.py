"""Types of the verbs' parameters that say to Prefect's forms what there is to choose from.

They check nothing: a form may be filled by other means, and what is wrong is told by the verb, in its own words.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import WithJsonSchema

from flows.method import names as methods
from flows.papers.paper_names import names as papers
from silos import bounds


def _one_of(values: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": values})


MethodName = Annotated[str, _one_of(methods())]
PaperName = Annotated[str, _one_of(papers())]
Scale = Annotated[str, _one_of(["cpu", "paper"])]
Seed = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": bounds.SEED})]
Overrides = Annotated[
    list[str] | Mapping[str, Any],
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "examples": [["training.rounds=20"]]}),
]

"""Describe a published figure: lines over one axis. Each point is a cell of a table."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from flows.core.search_space import insert_value


def _flat(value: Any) -> Any:
    """Flatten nested lists, so that a YAML anchor can name settings that cells share."""
    if not isinstance(value, list):
        return value
    return [line for part in value for line in (_flat(part) if isinstance(part, list) else [part])]


Settings = Annotated[tuple[str, ...], BeforeValidator(_flat)]
"""`section.key=value`; later settings override earlier ones."""


class Record(BaseModel):
    """A part of a page: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Shared(Record):
    """A cell of another table with the same settings, whose runs a cell shows."""

    table: str
    cell: str


class Line(Record):
    """One line of a figure.

    Attributes:
        place: The setting that puts a run at a place of the axis, with {} for the place; the figure's if none.
        at: The places that the line has; all places of the figure if none.
        published: The published number by place.
        beside: The same of other metrics, by metric.
        shared: The cell whose runs are shown, by place.
    """

    about: str
    method: str | None = None
    place: str | None = None
    at: tuple[int | float, ...] | None = None
    published: dict[int | float, float] = {}
    beside: dict[str, dict[int | float, float]] = {}
    shared: dict[int | float, Shared] = {}
    set: Settings = ()


class Curves(Record):
    """The lines of a figure.

    Attributes:
        over: The title of the axis.
        at: The places of the axis.
        place: The setting that puts a run at a place, with {} for the place.
        first_seed: The places at which only the first seed runs.
        contests: Groups of lines that are ranked at every place.
    """

    over: str
    at: tuple[int | float, ...] = Field(min_length=1)
    place: str
    lines: dict[str, Line] = Field(min_length=1)
    first_seed: tuple[int | float, ...] = ()
    contests: tuple[tuple[str, ...], ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> "Curves":
        known = {*self.at}
        for name, line in self.lines.items():
            own = {
                *(line.at or ()),
                *line.published,
                *line.shared,
                *(place for of in line.beside.values() for place in of),
            }
            for place in sorted(own - known):
                raise ValueError(f"the line {name} has {place}, which is no place of the axis: `at` names them")
        for place in sorted({*self.first_seed} - known):
            raise ValueError(f"first_seed has {place}, which is no place of the axis: `at` names them")
        for name in sorted({name for names in self.contests for name in names} - self.lines.keys()):
            raise ValueError(f"there is no line {name!r}; there are {', '.join(self.lines)}")
        for setting in (self.place, *(line.place for line in self.lines.values() if line.place)):
            insert_value(setting, 0)
        for name, line in self.lines.items():
            places = self.at if line.at is None else line.at
            if len({*places}) < len(places):
                raise ValueError(f"the line {name} has a place twice: `at` names each once")
        return self

    def cells(self) -> dict[str, dict[str, Any]]:
        """Return every point as a cell, by name."""
        return {
            cell_at(name, at): {
                "about": f"{line.about}; {self.over} {at}",
                "method": line.method,
                "published": line.published.get(at),
                "beside": {metric: of[at] for metric, of in line.beside.items() if at in of},
                "shared": line.shared.get(at),
                "set": [*line.set, insert_value(line.place or self.place, at)],
            }
            for name, line, at in self.points()
        }

    def points(self) -> Iterator[tuple[str, Line, int | float]]:
        """Yield name, line and place of every point."""
        for name, line in self.lines.items():
            for at in self.at if line.at is None else line.at:
                yield name, line, at

    def contests_of_cells(self) -> list[list[str]]:
        """Return the contests at every place, between the lines that have it."""
        there = {cell_at(name, at) for name, _, at in self.points()}
        ranked = [
            [c for name in names if (c := cell_at(name, at)) in there] for names in self.contests for at in self.at
        ]
        return [cells for cells in ranked if len(cells) > 1]

    def few(self) -> set[str]:
        """Return the cells of which only the first seed runs."""
        return {cell_at(name, at) for name, _, at in self.points() if at in self.first_seed}


def cell_at(line: str, place: int | float) -> str:
    """Return the name of a point's cell."""
    return f"{line}-{place}"

"""The one way to clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from silos.cohort import Cohort, Silos, Stack
from tasks.execution import task_runner
from tasks.execution.steps import ByClient, step


@step
def takes(
    cohort: Cohort,
    shares: ByClient[float] | None,
    metrics: Mapping[str, float],
    runs: Sequence[tuple[int, ByClient[str]]] = (),
) -> list[int]:
    return [len(metrics)]


def test_clients_are_reached_by_map_clients_alone():
    """So what every answer is held to is written once, and another way to clients is built in one place."""
    root = Path(task_runner.__file__).parents[2]
    sources = {
        path: path.read_text(encoding="utf-8") for room in ("flows", "tasks") for path in (root / room).rglob("*.py")
    }
    assert [path.stem for path, text in sources.items() if ".map_cohorts(" in text] == ["task_runner"]


def test_a_cohort_receives_what_the_types_of_a_step_say_is_its_clients():
    """Not what is named as clients are: a metric or a weight may have the name of a silo."""
    cohort = Cohort(Silos("nowhere", "none", ("a", "b")), (Stack(("b",), 1),))
    named = {"a": 1.0, "b": 2.0}
    call = task_runner.bind_arguments(takes, cohort, (named, named), {"runs": [(1, {"a": "x", "b": "y"})]})
    assert call == ((cohort, {"b": 2.0}, named), {"runs": [(1, {"b": "y"})]})
    assert task_runner.bind_arguments(takes, cohort, (None, {}), {})[0][1:] == (None, {})


def test_a_step_gets_all_arguments_also_where_it_names_no_type_of_each():
    @step
    def free(cohort: Cohort, *more: object) -> list[int]:
        return [len(more)]

    cohort = Cohort(Silos("nowhere", "none", ("a",)), (Stack(("a",), 1),))
    assert task_runner.bind_arguments(free, cohort, (1, 2, 3), {})[0] == (cohort, 1, 2, 3)

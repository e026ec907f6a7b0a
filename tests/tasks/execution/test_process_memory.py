"""What a round leaves in memory."""

import gc
import mmap
import subprocess
import sys
import weakref

import pytest
import torch
from prefect import flow

from silos.cohort import Cohort, Silos
from tasks.execution.open_workers import open_workers
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.process_memory import collect_garbage, resident_bytes, set_malloc_thresholds
from tasks.execution.steps import step

SILOS = Silos("nowhere", "none", ())
ROUNDS, SIZE = 60, 1_250_000  # float32: 5 MB


@step
def echo(cohort: Cohort, weights: torch.Tensor) -> list[torch.Tensor]:
    return [weights + 1]


@flow(validate_parameters=False)
def play_rounds() -> list[int]:
    """After each round, how many of the tensors that were sent or came back are still alive; nobody holds them."""
    seen: list[weakref.ref] = []
    alive = []
    with open_workers("threads", 2) as workers:
        for _ in range(ROUNDS):
            sent = [torch.zeros(SIZE), torch.zeros(SIZE)]
            answers = PrefectRunner(workers).map_cohorts(echo, [((Cohort(SILOS, ()), t), {}) for t in sent])
            seen += [weakref.ref(t) for t in (*sent, *(t for answer in answers for t in answer))]
            del sent, answers
            collect_garbage()
            alive.append(sum(ref() is not None for ref in seen))
    return alive


@pytest.mark.slow
def test_sixty_submitted_rounds_with_large_messages_hold_a_few_rounds_at_most(prefect):
    before = resident_bytes()
    gc.disable()  # or the collector might come by chance
    try:
        alive = play_rounds()
    finally:
        gc.enable()
    assert max(alive) <= 4 + 2**25 // (SIZE * 4) + 4  # two sent, two back, and what may grow before it is looked for
    assert resident_bytes() - before < ROUNDS * SIZE * 4  # a quarter of all that passed through


def test_a_process_holds_more_after_it_took_more():
    before = resident_bytes()
    with mmap.mmap(-1, 64 * SIZE) as held:  # from the system itself: an allocator may hand out what it was given back
        held.write(b"1" * len(held))
        assert resident_bytes() - before > 60 * SIZE


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_a_step_frees_is_not_handed_out_again_page_by_page():
    """Page faults of tensors of 40 MB that are made and dropped, in a process of its own."""
    program = (
        "import resource, sys, torch; from tasks.execution.process_memory import tune_malloc\n"
        "if sys.argv[1] == 'held': tune_malloc()\n"
        "for turn in range(30):\n"
        "    if turn == 10: before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    tensors = [torch.ones(10 * 2**20) for _ in range(3)]; del tensors\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    freed, held = (
        int(subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=True).stdout)
        for how in ("freed", "held")
    )
    assert held < freed / 4


@pytest.mark.parametrize(
    ("most", "expected"), [(2**26, {-3: 2**26, -1: 2**28}), (2**25, {-3: 2**25, -1: 2**28}), (2**20, {})]
)
def test_an_older_allocator_takes_smaller_pieces_or_stays_as_it_is(most, expected):
    """What mallopt refuses it does not do, and answers with 0."""
    taken = {}

    def mallopt(option, value):
        if option == -3 and value > most:
            return 0
        taken[option] = value
        return 1

    set_malloc_thresholds(mallopt)
    assert taken == expected

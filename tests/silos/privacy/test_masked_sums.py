"""Masked sums: the server reads the sum over silos that answered, and nothing of a single one, also if silos drop out."""

import contextlib
import itertools
import random
from hashlib import sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from silos.errors import RefusalError, UserError
from silos.privacy import masked_sums
from silos.privacy.masked_sums import PresentSilos, SumMember, SumSession, lasting_key, unmask
from silos.privacy.secret import Secret
from silos.privacy.secret_sharing import join_shares, split_secret

QUESTION = "q" * 64


def secret_of(name):
    return Secret(sha256(name.encode()).digest())


def session_of(count, least, colluders=1, name="s"):
    clients = tuple(f"silo {at}" for at in range(count))
    return SumSession(name, 0, clients, tuple(lasting_key(secret_of(each)) for each in clients), least, colluders)


def members_of(session):
    return {name: SumMember(secret_of(name), name, session) for name in session.clients}


def present_of(session, members, names):
    here = [name for name in session.clients if name in names]
    return PresentSilos(tuple(here), tuple(members[name].public_key for name in here))


def shares_for(session, members, present):
    """Return what each present silo received and opened."""
    sealed = {name: members[name].seal_shares() for name in present.clients}
    return {
        name: members[name].open_shares(
            present, [sealed[sender][session.clients.index(name)] for sender in present.clients]
        )
        for name in present.clients
    }


def run(session, numbers, present_names, answered_names, revealing, question=QUESTION):
    """Run a sum in which silos drop out after each step; return what the server reads."""
    members = members_of(session)
    present = present_of(session, members, present_names)
    opened = shares_for(session, members, present)
    answered = [name for name in present.clients if name in answered_names]
    total = np.zeros(len(next(iter(numbers.values()))), np.int64)
    for name in answered:
        total += members[name].mask(numbers[name], question, present)
    revealed = reveal_all(members, present, answered, opened, question, revealing)
    return unmask(total, session, question, present, answered, revealed)


def reveal_all(members, present, answered, opened, question=QUESTION, revealing=None):
    """Return the shares that silos reveal after all that answered have confirmed the lists."""
    codes = {name: members[name].confirm(question, present, answered) for name in answered}
    return {
        name: members[name].reveal_shares(
            question, present, answered, opened[name], {sender: own[at] for sender, own in codes.items()}
        )
        for at, name in enumerate(answered)
        if revealing is None or name in revealing
    }


@st.composite
def dropouts(draw):
    """Draw a session and the silos that are left after each step, never fewer than the least."""
    count = draw(st.integers(2, 9))
    colluders = draw(st.integers(0, count - 1))
    lowest = max(colluders + 1, (count + colluders) // 2 + 1)
    if lowest > count:
        colluders, lowest = 0, count // 2 + 1
    least, order = draw(st.integers(lowest, count)), draw(st.permutations(range(count)))
    first = draw(st.integers(least, count))
    second = draw(st.integers(least, first))
    third = draw(st.integers(least, second))
    names = [f"silo {at}" for at in order]
    return session_of(count, least, colluders), names[:first], names[:second], names[:third]


@settings(max_examples=40, deadline=None)
@given(dropouts(), st.integers(0, 2**32))
def test_the_server_reads_the_sum_of_the_silos_that_answered_also_if_silos_drop_out(drawn, seed):
    session, present, answered, revealing = drawn
    session.check()
    rng = np.random.default_rng(seed)
    numbers = {name: rng.integers(-(2**40), 2**40, 5) for name in session.clients}
    read = run(session, numbers, present, answered, revealing)
    np.testing.assert_array_equal(read, sum(numbers[name] for name in answered))


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_a_threshold_of_shares_gives_the_secret_and_fewer_do_not(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    shares = dict(enumerate(split_secret(secret, count, threshold, b"key"), 1))
    chosen = data.draw(st.permutations(range(1, count + 1)))
    assert join_shares({at: shares[at] for at in chosen[:threshold]}) == secret
    if threshold > 1:
        with contextlib.suppress(ValueError):
            assert join_shares({at: shares[at] for at in chosen[: threshold - 1]}) != secret


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """Any other secret has coefficients that give the same share: here the line through it and one share."""
    (share, _) = split_secret(bytes(32), 2, 2, b"key")
    prime, value = 2**521 - 1, int.from_bytes(share, "big")
    for other in (1, 2**200, 2**256 - 1):
        second = (value - other) * 2 + other  # at 2 of the line through (0, other) and (1, value)
        assert join_shares({1: share, 2: (second % prime).to_bytes(66, "big")}) == other.to_bytes(32, "big")


@pytest.mark.parametrize(("count", "threshold"), [(3, 0), (3, 4)])
def test_a_threshold_that_cannot_be_met_is_refused(count, threshold):
    with pytest.raises(ValueError, match="threshold"):
        split_secret(bytes(32), count, threshold, b"")


def test_one_silo_s_masked_numbers_do_not_show_them():
    """Of equal numbers each masked one has another distribution than its neighbour by chance alone: bits are fair."""
    session = session_of(3, 3)
    members = members_of(session)
    present = present_of(session, members, session.clients)
    masked = members["silo 1"].mask(np.zeros(4096, np.int64), QUESTION, present)
    ones = np.unpackbits(masked.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * 4096)
    again = SumMember(secret_of("silo 1"), "silo 1", session).mask(np.zeros(4096, np.int64), QUESTION, present)
    np.testing.assert_array_equal(masked, again)
    other = members["silo 1"].mask(np.zeros(4096, np.int64), "r" * 64, present)
    assert (masked != other).all(), "other weights have other masks"


def knows(session, target, colluding, revealed_seed, revealed_key):
    """Return whether a server with colluders can compute both secrets of the target's masks.

    Args:
        session: The session.
        target: The silo that is attacked.
        colluding: Silos that give the server all that they know.
        revealed_seed: Further silos that revealed a share of the target's seed.
        revealed_key: Further silos that revealed a share of its key.
    """
    return all(len({*colluding, *more}) >= session.least for more in (revealed_seed, revealed_key))


@pytest.mark.parametrize(("count", "colluders"), [(3, 1), (4, 1), (5, 2), (6, 2), (7, 1), (7, 3)])
def test_no_split_of_honest_silos_reveals_both_secrets_of_a_silo(count, colluders):
    """The server shows half of the honest silos that the target answered, and the other half that it did not."""
    least = (count + colluders) // 2 + 1
    session = session_of(count, least, colluders)
    session.check()
    names = session.clients
    for colluding in itertools.combinations(names[1:], colluders):
        honest = [name for name in names if name not in colluding]
        for size in range(len(honest) + 1):
            assert not knows(session, names[0], colluding, honest[:size], honest[size:])
    too_few = session_of(count, least - 1, colluders)
    with pytest.raises(UserError, match="expected more than"):
        too_few.check()
    if 2 * (least - 1) == count + colluders:  # a tie is the first that would be read
        half = (count - colluders) // 2
        assert knows(too_few, names[0], names[-colluders:], names[:half], names[half : 2 * half])


def test_other_weights_to_one_silo_leave_its_masks_on():
    session = session_of(4, 3)
    members = members_of(session)
    present = present_of(session, members, session.clients)
    opened = shares_for(session, members, present)
    numbers = np.full(3, 7, np.int64)
    answers = [
        member.mask(numbers, "other" if name == "silo 2" else QUESTION, present) for name, member in members.items()
    ]
    revealed = reveal_all(members, present, session.clients, opened)
    for question in (QUESTION, "other"):
        read = unmask(sum(answers), session, question, present, session.clients, revealed)
        assert (np.abs(read - 28) > 2**32).all()
        # nor is the one silo's answer readable by itself
        alone = unmask(answers[2], session, question, present, session.clients, revealed)
        assert (np.abs(alone - 7) > 2**32).all()


def test_a_late_answer_is_not_readable():
    """The others have revealed the late silo's key, so that only its own seed protects its numbers."""
    session = session_of(4, 3)
    members = members_of(session)
    present = present_of(session, members, session.clients)
    opened = shares_for(session, members, present)
    answered = session.clients[:3]
    revealed = reveal_all(members, present, answered, opened)
    late = members["silo 3"].mask(np.full(3, 7, np.int64), QUESTION, present)
    key = join_shares({session.clients.index(name) + 1: shares[3] for name, shares in revealed.items()})
    for at, name in enumerate(answered):
        own = X25519PrivateKey.from_private_bytes(key)
        seed = masked_sums.pair_seed(own, present.keys[at], session, QUESTION, present, "silo 3", name)
        late -= (1 if session.clients.index(name) > 3 else -1) * masked_sums._stream(seed, 3)
    assert (np.abs(late - 7) > 2**32).all()
    swapped = {name: [*shares[1:], shares[0]] for name, shares in revealed.items()}  # of seeds, where a key is due
    with pytest.raises(UserError, match="do not give the key of client silo 3"):
        unmask(late, session, QUESTION, present, answered, swapped)


def test_shares_of_another_session_or_with_another_key_are_refused():
    session, other = session_of(3, 3), session_of(3, 3, name="t")
    members, strangers = members_of(session), members_of(other)
    present = present_of(session, members, session.clients)
    sealed = [members[name].seal_shares()[0] for name in session.clients]
    members["silo 0"].open_shares(present, sealed)
    with pytest.raises(RefusalError, match="got shares of silo 1 that this silo did not make"):
        members["silo 0"].open_shares(present, [sealed[0], strangers["silo 1"].seal_shares()[0], sealed[2]])
    replaced = PresentSilos(present.clients, (present.keys[0], strangers["silo 1"].public_key, present.keys[2]))
    with pytest.raises(RefusalError, match="got shares of silo 1"):
        members["silo 0"].open_shares(replaced, sealed)


@pytest.mark.parametrize("answered", [["silo 0"], ["silo 1", "silo 2"], ["silo 2", "silo 1", "silo 0"], ["x"] * 3])
def test_no_shares_are_revealed_for_another_list_than_one_of_enough_present_silos(answered):
    session = session_of(4, 3)
    members = members_of(session)
    present = present_of(session, members, session.clients[:3])
    with pytest.raises(RefusalError, match="client silo 0: got a sum over"):
        members["silo 0"].confirm(QUESTION, present, answered)


def test_nothing_is_revealed_unless_enough_silos_confirm_the_same():
    """The server shows silo 0 another list than it shows the others: their codes are of other lists."""
    session = session_of(6, 4)
    members = members_of(session)
    present = present_of(session, members, session.clients)
    opened = shares_for(session, members, present)["silo 0"]
    fewer, everyone = session.clients[:4], session.clients
    right = {name: members[name].confirm(QUESTION, present, fewer)[0] for name in fewer}
    others = {name: members[name].confirm(QUESTION, present, everyone)[0] for name in everyone}
    reweighted = {name: members[name].confirm("other", present, fewer)[0] for name in fewer}
    members["silo 0"].reveal_shares(QUESTION, present, fewer, opened, right)
    for codes in (
        {**right, "silo 1": others["silo 1"]},
        {**right, "silo 1": reweighted["silo 1"]},
        {**right, "silo 1": right["silo 2"]},
        {**right, "silo 4": others["silo 4"]},
        dict(list(right.items())[:3]),
    ):
        with pytest.raises(RefusalError, match="right confirmations among"):
            members["silo 0"].reveal_shares(QUESTION, present, fewer, opened, codes)


def test_a_silo_that_repeats_the_key_of_another_cancels_no_mask():
    """Silo 0 colludes and repeats the key of silo 2: with equal seeds, the masks of silo 1 with both would cancel."""
    session = session_of(3, 3)
    members = members_of(session)
    keys = tuple(members[name].public_key for name in ("silo 2", "silo 1", "silo 2"))
    present = PresentSilos(session.clients, keys)
    masked = members["silo 1"].mask(np.array([10, 20, 30]), QUESTION, present)
    seed = masked_sums._derive(members["silo 1"]._seed, "self", f"{session.digest} {QUESTION}")
    assert (np.abs(masked - masked_sums._stream(seed, 3)) > 2**32).all()


def test_a_silo_takes_no_part_under_another_key():
    session = session_of(3, 3)
    with pytest.raises(RefusalError, match="another key for this silo"):
        SumMember(secret_of("silo 1"), "silo 0", session)
    with pytest.raises(RefusalError, match="another key for this silo"):
        SumMember(secret_of("x"), "x", session)


@pytest.mark.parametrize(
    ("count", "least", "colluders", "message"),
    [
        (1, 1, 0, "secure_sums: got 1 silos"),
        (201, 150, 0, "expected 2 to 200"),
        (4, 5, 0, "least: got 5, expected at most 4"),
        (4, 2, 2, "more than 2, which may collude"),
        (4, 2, 0, "expected more than half of them and of 0 that may collude together, 3 or more"),
        (9, 5, 1, "6 or more"),
    ],
)
def test_sessions_that_would_reveal_less_than_a_sum_are_refused(count, least, colluders, message):
    clients = tuple(map(str, range(count)))
    keys = tuple(f"{at:064x}" for at in range(count))
    with pytest.raises(UserError, match=message):
        SumSession("s", 0, clients, keys, least, colluders).check()


def test_too_few_revealed_shares_read_nothing():
    session = session_of(4, 3)
    numbers = {name: np.arange(3) for name in session.clients}
    with pytest.raises(UserError, match="got shares of 2 silos, expected 3 or more"):
        run(session, numbers, session.clients, session.clients, session.clients[:2])


def test_two_silos_together_with_the_server_read_no_third():
    """They know their own masks and shares; of the five others only the sum is left."""
    session = session_of(7, 5, colluders=2)
    session.check()
    members, rng = members_of(session), random.Random(3)
    present = present_of(session, members, session.clients)
    opened = shares_for(session, members, present)
    numbers = {name: np.array([rng.randrange(1000)]) for name in session.clients}
    masked = {name: members[name].mask(numbers[name], QUESTION, present) for name in session.clients}
    revealed = reveal_all(members, present, session.clients, opened)
    target, bound = "silo 3", f"{session.digest} {QUESTION}"
    seed = join_shares({at: revealed[f"silo {at - 1}"][3] for at in range(1, 6)})
    left = masked[target] - masked_sums._stream(masked_sums._derive(seed, "self", bound), 1)
    for name in ("silo 0", "silo 1"):
        own = masked_sums.pair_seed(
            members[name]._key, members[target].public_key, session, QUESTION, present, name, target
        )
        left -= (1 if name > target else -1) * masked_sums._stream(own, 1)
    assert abs(int(left[0]) - int(numbers[target][0])) > 2**32


@pytest.mark.parametrize(
    ("clients", "keys"),
    [(("a", "a"), ("0" * 64, "1" * 64)), (("a", "b"), ("0" * 64,) * 2), (("a", "b"), ("0" * 64, "G" * 64))],
)
def test_a_session_has_one_key_for_each_silo(clients, keys):
    with pytest.raises(UserError, match=r"training\.privacy\.secure_sums: got"):
        SumSession("s", 0, clients, keys, 2, 0).check()

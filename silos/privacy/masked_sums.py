"""Sums over silos that a server can read, although it can read no silo's own numbers (Bonawitz et al. 2017).

Each silo u has a lasting key pair. For a sum it derives a key pair (a_u, A_u) and a seed b_u from its secret.
1. u sends A_u, and for each silo v, encrypted with a key that only u and v have, its share of a_u and of b_u.
2. u sends x_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv), modulo 2^64, with
   s_uv = KDF(DH(a_u, A_v), session, question, names and keys of both), v being the silos present. In the sum over all
   of these the s cancel.
3. u confirms to each v which silos were present and which answered, with a code that only u and v can make.
4. If `least` silos confirmed the same, each reveals its shares of b_v for the silos v that answered, and of a_v for
   those that stopped after step 1. From `least` shares the server computes b_v or a_v, and subtracts what did not cancel.

`least` is more than half of silos and colluders together. So two groups of `least` silos have an honest silo in common,
which confirms one list of silos a sum, and all honest silos reveal shares for the same list. The server, together with
at most `colluders` silos, reads the sum of the honest silos on that list, `least` - `colluders` or more, and no other.
"""

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silos.errors import RefusalError, UserError
from silos.privacy.secret import Secret
from silos.privacy.secret_sharing import SECRET_BYTES, SHARE_BYTES, join_shares, split_secret

MOST_SILOS = 200
"""Silos of a sum: each of them makes two shares for every other."""

SEALED_BYTES = 2 * SHARE_BYTES + 16
"""The length of two encrypted shares with their tag."""

CODE_BYTES = 32
"""The length of a confirmation."""

_KEY, _LONGEST_NAME = re.compile("[0-9a-f]{64}"), 500
_NONCE = bytes(12)  # each key encrypts one message
_PUT_RIGHT = "Lower training.privacy.colluders, raise training.privacy.least, or let more silos take part."


@dataclass(frozen=True)
class SumSession:
    """What the silos of a sum agree on; masks of silos that were sent another session do not cancel.

    Attributes:
        name: The name of the sum: a hash of seed, round, settings and weights.
        attempt: The number of earlier attempts at this sum.
        clients: The silos that are invited.
        keys: Their lasting public keys, in hexadecimal digits.
        least: The fewest silos whose sum may be read.
        colluders: The most silos that may pass what they know to the server.
    """

    name: str
    attempt: int
    clients: tuple[str, ...]
    keys: tuple[str, ...]
    least: int
    colluders: int

    def check(self) -> None:
        """Raise a UserError for repeated names or keys, and for numbers of silos under which less could be read."""
        count = len(self.clients)
        # two silos with one key have the same masks, which cancel, and one of them could remove the other's
        if len({*self.clients}) < count or len({*self.keys}) < count or len(self.keys) != count:
            raise UserError(
                "training.privacy.secure_sums: got two silos with one name or one key, expected a key for each: a silo's "
                "folder under private/ was copied. Give the copy a new one."
            )
        if (
            any(_KEY.fullmatch(key) is None for key in self.keys)
            or max(map(len, self.clients), default=0) > _LONGEST_NAME
        ):
            raise UserError(
                "training.privacy.secure_sums: got a key that is none, or a name of a silo that is too long, expected 64 "
                f"hexadecimal digits and at most {_LONGEST_NAME} characters."
            )
        if not 2 <= count <= MOST_SILOS:
            raise UserError(
                f"training.privacy.secure_sums: got {count} silos in a round, expected 2 to {MOST_SILOS}. Change "
                "clients.fraction, or set training.privacy.secure_sums to false."
            )
        if self.least > count:
            raise UserError(
                f"training.privacy.least: got {self.least}, expected at most {count}, the silos of this round. Lower it, or "
                "let more silos take part (clients.fraction, clients.least)."
            )
        if not 0 <= self.colluders < self.least:
            raise UserError(
                f"training.privacy.least: got {self.least} of {count} silos, expected more than {self.colluders}, which may "
                f"collude. {_PUT_RIGHT}"
            )
        if 2 * self.least <= count + self.colluders:
            raise UserError(
                f"training.privacy.least: got {self.least} of {count} silos, expected more than half of them and of "
                f"{self.colluders} that may collude together, {(count + self.colluders) // 2 + 1} or more, or the server "
                f"could let two groups of silos reveal one silo's numbers. {_PUT_RIGHT}"
            )

    @cached_property
    def digest(self) -> str:
        """Return a hash of all of it."""
        return hash_of([self.name, self.attempt, self.clients, self.keys, self.least, self.colluders])

    def key_of(self, client: str) -> str:
        """Return the lasting public key of an invited silo."""
        return self.keys[self.clients.index(client)]


@dataclass(frozen=True)
class PresentSilos:
    """The silos that sent shares, in the order of the session, and their public keys of this sum, in hexadecimal digits."""

    clients: tuple[str, ...]
    keys: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """Return a hash of all of it."""
        return hash_of([self.clients, self.keys])


def lasting_key(secret: Secret) -> str:
    """Return the lasting public key of a silo, in hexadecimal digits."""
    return _public(_lasting(secret)).hex()


@dataclass(frozen=True)
class SumMember:
    """A silo's part in a sum. All of it follows from its secret and the session, so it can be computed again.

    Attributes:
        secret: The silo's secret.
        client: Its name.
        session: The session; `SumSession.check` has passed.
    """

    secret: Secret
    client: str
    session: SumSession

    def __post_init__(self) -> None:
        """Raise RefusalError for a session that does not invite this silo under its own key."""
        if self.client not in self.session.clients or self.session.key_of(self.client) != lasting_key(self.secret):
            raise RefusalError(
                f"client {self.client}: got a sum with another key for this silo, expected its own. Start the run again."
            )

    @property
    def public_key(self) -> str:
        """Return the public key for this sum, in hexadecimal digits."""
        return _public(self._key).hex()

    def seal_shares(self) -> list[bytes]:
        """Return two shares for each invited silo, encrypted: SEALED_BYTES each, in the order of the session."""
        count, least = len(self.session.clients), self.session.least
        of_key = split_secret(self._key_bytes, count, least, self._derived("shares of the key"))
        of_seed = split_secret(self._seed, count, least, self._derived("shares of the seed"))
        bound = bytes.fromhex(self.public_key)
        return [
            ChaCha20Poly1305(self._pair("shares", self.client, other)).encrypt(_NONCE, of_key[at] + of_seed[at], bound)
            for at, other in enumerate(self.session.clients)
        ]

    def open_shares(self, present: PresentSilos, sealed: Sequence[bytes]) -> dict[str, tuple[bytes, bytes]]:
        """Decrypt the shares of the present silos' keys and seeds that were sent to this silo, by silo.

        Args:
            present: The silos that sent shares.
            sealed: What each of them encrypted for this silo.

        Raises:
            RefusalError: If one was not made by that silo for this session, or fewer silos are present than `least`.
        """
        session, opened = self.session, {}
        expected = [name for name in session.clients if name in present.clients]
        if [*present.clients] != expected or len(expected) < session.least or self.client not in expected:
            raise RefusalError(
                f"client {self.client}: got a sum over {len(present.clients)} silos, expected {session.least} or more that "
                "are invited, this one among them. Start the run again."
            )
        for other, key, text in zip(present.clients, present.keys, sealed, strict=True):
            try:
                both = ChaCha20Poly1305(self._pair("shares", other, self.client)).decrypt(
                    _NONCE, text, bytes.fromhex(key)
                )
            except (InvalidTag, ValueError):
                raise RefusalError(
                    f"client {self.client}: got shares of {other} that this silo did not make for the same sum, expected "
                    "its own: the silos were sent different sessions, or keys were replaced. Start the run again."
                ) from None
            _exchange(self._key, key, other)  # now, so that a key without a secret is refused before rows are read
            opened[other] = (both[:SHARE_BYTES], both[SHARE_BYTES:])
        return opened

    def mask(self, numbers: np.ndarray, question: str, present: PresentSilos) -> np.ndarray:
        """Add masks to numbers, (count,) int64; `open_shares` has checked the present silos' keys.

        Args:
            numbers: The silo's numbers.
            question: A hash of all that the numbers depend on besides rows; masks of silos with another one do not cancel.
            present: The silos that sent shares.
        """
        count, own = len(numbers), self.session.clients.index(self.client)
        masked = numbers + _stream(_derive(self._seed, "self", self._bound(question)), count)
        for other, key in zip(present.clients, present.keys, strict=True):
            if other != self.client:
                seed = pair_seed(self._key, key, self.session, question, present, self.client, other)
                sign = 1 if self.session.clients.index(other) > own else -1
                masked += sign * _stream(seed, count)
        return masked

    def confirm(self, question: str, present: PresentSilos, answered: Sequence[str]) -> list[bytes]:
        """Return for each silo that answered a code of CODE_BYTES, by which this silo confirms the lists to it.

        Args:
            question: The hash that this silo used in `mask`.
            present: The silos that sent shares.
            answered: The silos that the server says it has masked numbers of.

        Raises:
            RefusalError: If fewer silos answered than `least`, or other silos than those present.
        """
        names = [name for name in present.clients if name in answered]
        if [*answered] != names or len(names) < self.session.least or self.client not in names:
            raise RefusalError(
                f"client {self.client}: got a sum over {len(answered)} silos, expected {self.session.least} or more that "
                "are present, this one among them. Start the run again."
            )
        return [self._code(self.client, other, question, present, answered) for other in answered]

    def reveal_shares(
        self,
        question: str,
        present: PresentSilos,
        answered: Sequence[str],
        shares: Mapping[str, tuple[bytes, bytes]],
        codes: Mapping[str, bytes],
    ) -> list[bytes]:
        """Return a share for each present silo: of its seed if it answered, of its key if it did not.

        Args:
            question: The hash that this silo used in `mask`.
            present: The silos that sent shares.
            answered: The silos whose masked numbers the server has, as this silo confirmed them.
            shares: What `open_shares` returned.
            codes: By silo the code with which it confirmed the same lists to this silo.

        Raises:
            RefusalError: If fewer silos confirmed the lists than `least`, or a code is of other lists.
        """
        right = [
            name
            for name, code in codes.items()
            if name in answered
            and hmac.compare_digest(code, self._code(name, self.client, question, present, answered))
        ]
        if len(right) < max(self.session.least, len(codes)):
            raise RefusalError(
                f"client {self.client}: got {len(right)} right confirmations among {len(codes)}, expected "
                f"{self.session.least} or more and no wrong one: silos were sent other weights or lists of silos. Start the "
                "run again."
            )
        return [shares[name][1 if name in answered else 0] for name in present.clients]

    def _bound(self, question: str) -> str:
        return f"{self.session.digest} {question}"

    @cached_property
    def _lasting(self) -> X25519PrivateKey:
        return _lasting(self.secret)

    @cached_property
    def _key_bytes(self) -> bytes:
        return self._derived("key")

    @cached_property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self._key_bytes)

    @cached_property
    def _seed(self) -> bytes:
        return self._derived("seed")

    def _derived(self, purpose: str) -> bytes:
        return self.secret.key("secure sum", purpose, self.session.digest)

    def _pair(self, purpose: str, sender: str, receiver: str) -> bytes:
        """Return the key by which one of a pair of silos encrypts for the other, or confirms to it."""
        other = receiver if sender == self.client else sender
        shared = _exchange(self._lasting, self.session.key_of(other), other)
        return _derive(shared, purpose, self.session.digest, sender, receiver)

    def _code(self, sender: str, receiver: str, question: str, present: PresentSilos, answered: Sequence[str]) -> bytes:
        content = json.dumps([question, present.digest, [*answered]]).encode()
        return hmac.digest(self._pair("confirm", sender, receiver), content, "sha256")


def unmask(
    total: np.ndarray,
    session: SumSession,
    question: str,
    present: PresentSilos,
    answered: Sequence[str],
    revealed: Mapping[str, Sequence[bytes]],
) -> np.ndarray:
    """Remove the masks from a sum of masked numbers, modulo 2^64.

    Args:
        total: The sum of the answers, (count,) int64.
        session: The session.
        question: The hash that the silos used.
        present: The silos that sent shares.
        answered: The silos whose numbers are in the sum.
        revealed: By silo the shares that it revealed, for each present silo.

    Raises:
        UserError: If fewer than `least` silos revealed shares, or their shares do not belong to the present silos.
    """
    if len(revealed) < session.least:
        raise UserError(
            f"training.privacy.least: got shares of {len(revealed)} silos, expected {session.least} or more, so that the "
            "sum stays unreadable. Wait for silos that are away, and resume the run."
        )
    bound, opened = f"{session.digest} {question}", total.copy()
    chosen = [*revealed][: session.least]
    for at, (name, key) in enumerate(zip(present.clients, present.keys, strict=True)):
        try:
            secret = join_shares({session.clients.index(each) + 1: revealed[each][at] for each in chosen})
        except ValueError:
            raise _unfit(name) from None
        if name in answered:
            opened -= _stream(_derive(secret, "self", bound), len(total))
            continue
        stopped = X25519PrivateKey.from_private_bytes(secret)
        if _public(stopped).hex() != key:
            raise _unfit(name)
        for other, other_key in zip(present.clients, present.keys, strict=True):
            if other in answered:  # its mask with the silo that stopped has not cancelled
                sign = 1 if session.clients.index(name) > session.clients.index(other) else -1
                seed = pair_seed(stopped, other_key, session, question, present, name, other)
                opened -= sign * _stream(seed, len(total))
    return opened


def pair_seed(
    own: X25519PrivateKey, key: str, session: SumSession, question: str, present: PresentSilos, first: str, second: str
) -> bytes:
    """Return the seed of the mask of two silos, by the private key of one and the public key of the other.

    It depends on both names and keys: otherwise a silo that repeats another's key would have the same mask as that one, with
    the other sign.
    """
    pair = sorted((first, second), key=session.clients.index)
    keys = [present.keys[present.clients.index(name)] for name in pair]
    return _derive(_exchange(own, key, second), "mask", session.digest, question, *pair, *keys)


def _lasting(secret: Secret) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(secret.key("secure sums"))


def _public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _exchange(own: X25519PrivateKey, other: str, name: str) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
    except ValueError:
        raise RefusalError(f"client {name}: got a key that is not 64 hexadecimal digits, expected one.") from None


def _derive(key: bytes, *names: str) -> bytes:
    return HKDF(SHA256(), SECRET_BYTES, None, json.dumps(names).encode()).derive(key)


def _stream(key: bytes, count: int) -> np.ndarray:
    """Return pseudorandom numbers, (count,) int64: a key stream of ChaCha20. A key masks one list of numbers."""
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), "<i8").astype(np.int64)


def hash_of(parts: Sequence[object]) -> str:
    """Return the SHA-256 of a list as JSON, in hexadecimal digits."""
    return sha256(json.dumps(parts).encode()).hexdigest()


def _unfit(name: str) -> UserError:
    return UserError(
        f"training.privacy.secure_sums: got shares that do not give the key of client {name}, expected its own, so that the "
        "sum stays unreadable: that silo made wrong shares, or another one revealed wrong ones. Start the run again."
    )

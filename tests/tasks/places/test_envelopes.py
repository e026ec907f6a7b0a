"""Envelopes: only what the known key signed is read, and each refusal says why in a sentence."""

import hashlib
import json
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silos.errors import UserError
from tasks.places.envelopes import (
    MOST_OVERHEAD,
    EnvelopeError,
    Header,
    PrivateKey,
    PublicKey,
    TooLargeError,
    seal,
    unseal,
)

HEADER = Header("0" * 32, "north", 7, "f" * 32, "ask", "local_train", "0.1.0")
LIMIT = 1000


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> PrivateKey:
    return PrivateKey.create(tmp_path_factory.mktemp("keys") / "own.pem")


def signed(key: PrivateKey, head: bytes, body: bytes = b"") -> bytes:
    """An envelope of any header, as a holder of the key could make it."""
    return key.sign(b"siloflow envelope 1\n" + head) + len(head).to_bytes(4, "big") + head + body


def fields(body: bytes = b"", **changes: object) -> dict[str, object]:
    sealed = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return {k: v for k, v in ({**HEADER.__dict__, **sealed} | changes).items() if v is not ...}


def compact(values: object) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


@given(body=st.binary(max_size=LIMIT), number=st.integers(0, 10**8 - 1), nonce=st.sampled_from(["", "a" * 32]))
def test_what_is_sealed_is_unsealed(key, body, number, nonce):
    header = replace(HEADER, number=number, nonce=nonce, way="answer")
    envelope = seal(key, header, body)
    assert unseal(key.public, envelope, LIMIT) == (header, body)
    assert envelope == seal(key, header, body)
    assert len(envelope) <= len(body) + MOST_OVERHEAD


@given(data=st.data())
def test_an_envelope_with_any_bit_changed_is_refused(key, data):
    envelope = bytearray(seal(key, HEADER, b"any content"))
    bit = data.draw(st.integers(0, 8 * len(envelope) - 1))
    envelope[bit // 8] ^= 1 << bit % 8
    with pytest.raises(EnvelopeError):
        unseal(key.public, bytes(envelope), LIMIT)


def test_an_envelope_cut_anywhere_or_with_more_bytes_is_refused(key):
    envelope = seal(key, HEADER, b"body")
    for size in range(len(envelope)):
        with pytest.raises(EnvelopeError, match=r"truncated|no envelope|signature"):
            unseal(key.public, envelope[:size], LIMIT)
    with pytest.raises(EnvelopeError, match="altered"):
        unseal(key.public, envelope + b"x", LIMIT)


def test_the_reason_is_named(key, tmp_path):
    other = PrivateKey.create(tmp_path / "other.pem")
    envelope = seal(key, HEADER, b"body")
    for public, content, reason in (
        (other.public, envelope, "signature"),
        (key.public, bytes(64) + envelope[64:], "signature"),  # unsigned
        (key.public, envelope[:-1] + b"x", "altered"),
        (key.public, envelope[:-1], "3 of 4 bytes.*truncated"),
        (key.public, b"", "truncated"),
        (key.public, bytes(64) + b"\xff" * 4 + b"{}", "4,294,967,295 bytes"),
    ):
        with pytest.raises(EnvelopeError, match=reason) as caught:
            unseal(public, content, LIMIT)
        assert "\n" not in str(caught.value)


def test_a_larger_body_is_refused_by_its_signed_size_before_it_is_there(key):
    head = compact(fields(bytes=10 * 2**30))
    with pytest.raises(TooLargeError, match="10,737,418,240 bytes, expected at most 1,000") as caught:
        unseal(key.public, signed(key, head, b"begins"), LIMIT)
    assert caught.value.header == HEADER


def test_a_signature_for_another_purpose_is_none(key):
    head = compact(fields())
    with pytest.raises(EnvelopeError, match="signature"):
        unseal(key.public, key.sign(head) + len(head).to_bytes(4, "big") + head, LIMIT)


@pytest.mark.parametrize(
    "changes",
    [
        {"session": "0" * 31},
        {"session": 7},
        {"session": "../../../../../../../../../../etc"},
        {"place": "../north"},
        {"place": ""},
        {"place": None},
        {"number": -1},
        {"number": True},
        {"number": 7.0},
        {"number": "7"},
        {"number": 10**8},
        {"nonce": "F" * 32},
        {"nonce": ["f" * 32]},
        {"way": "up"},
        {"way": {"a": 1}},
        {"subject": "os.system('id')"},
        {"subject": ""},
        {"siloflow": "0" * 61},
        {"siloflow": ...},
        {"sha256": ...},
        {"sha256": "A" * 64},
        {"bytes": ...},
        {"bytes": -1},
        {"bytes": True},
        {"bytes": "0"},
        {"expires": 0},
        {"__class__": "x"},
    ],
    ids=str,
)
def test_a_header_with_other_fields_types_or_forms_is_refused_though_signed(key, changes):
    with pytest.raises(EnvelopeError, match=r"^header: "):
        unseal(key.public, signed(key, compact(fields(**changes))), LIMIT)


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b"7",
        b"\xff",
        b"{",
        b"[" * 2000,
        json.dumps(fields()).encode(),
        compact(fields())[:-1] + b',"number":8}',
        compact(fields()).replace(b'"number":7', b'"number":NaN'),
        compact(fields()).replace(b'"number":7', b'"number":' + b"7" * 1500),
    ],
    ids=lambda head: str(head[-30:]),
)
def test_only_the_one_form_of_json_is_read(key, head):
    with pytest.raises(EnvelopeError, match=r"^header: "):
        unseal(key.public, signed(key, head), LIMIT)


def test_a_wrong_header_is_not_sealed():
    with pytest.raises(EnvelopeError, match="place"):
        replace(HEADER, place="a/b")


def test_a_key_is_read_by_its_owner_alone_and_never_overwritten(tmp_path):
    path = tmp_path / "place" / "own.pem"
    key = PrivateKey.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert PrivateKey.read(path).public == key.public
    with pytest.raises(UserError, match="expected none"):
        PrivateKey.create(path)
    assert PrivateKey.read(path).public == key.public
    assert list(path.parent.iterdir()) == [path]
    path.chmod(0o640)
    with pytest.raises(UserError, match="mode 040"):
        PrivateKey.read(path)
    path.write_bytes(b"-----BEGIN")
    path.chmod(0o600)
    for wrong in (path, tmp_path / "none.pem"):
        with pytest.raises(UserError, match="got no key"):
            PrivateKey.read(wrong)


def test_a_public_key_has_a_text_and_a_fingerprint(tmp_path):
    first, second = (PrivateKey.create(tmp_path / f"{n}.pem").public for n in "ab")
    assert PublicKey.from_text(f" {first.text}\n") == first != second
    assert len(first.text) == 44
    groups = first.fingerprint.split("-")
    assert [len(g) for g in groups] == [4] * 8
    assert int("".join(groups), 16) >= 0
    assert first.fingerprint == PublicKey.from_text(first.text).fingerprint != second.fingerprint
    for wrong in ("", first.text[:-4], first.text[:-1] + "!", "é" * 44):
        with pytest.raises(UserError, match="base64"):
            PublicKey.from_text(wrong)

"""Who may use a broker: hashes of tokens in its folder, and the certificate by which places know it."""

import datetime
import hashlib
import ipaddress
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from silos.io.atomic_io import file_stamp, write_bytes
from silos.io.locks import in_turn
from tasks.places.envelopes import write_secret

COORDINATOR = "coordinator"
"""The name of the coordinator's token; no place has it."""


class TokenFile(Mapping[str, str]):
    """The hashes of tokens by name, as they are now in a broker's folder."""

    def __init__(self, folder: Path):
        self._path, self._stamp = folder / "tokens.json", (0, 0, 0, 0)
        self._hashes: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, str]:
        try:
            if (stamp := file_stamp(self._path)) != self._stamp:
                self._hashes, self._stamp = json.loads(self._path.read_text(encoding="utf-8")), stamp
        except FileNotFoundError:
            return {}
        return self._hashes


def add_token(folder: Path, name: str) -> str:
    """Let a place, or the coordinator, in: return its new token, and keep the hash in a broker's folder."""
    token = secrets.token_urlsafe(32)
    _change_tokens(folder, lambda hashes: hashes | {name: hash_token(token)})
    return token


def remove_token(folder: Path, name: str) -> None:
    """Let a place in no more; its messages stay."""
    _change_tokens(folder, lambda hashes: {n: h for n, h in hashes.items() if n != name})


def hash_token(token: str) -> str:
    """Return what a broker stores of a token; a token is random, so that no salt is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def make_certificate(certificate: Path, key: Path, host: str) -> None:
    """Write a new self-signed certificate for a host name or an IP address, and its key (PEM).

    It is valid at any time: places accept this certificate alone, and their clocks may be wrong.
    """
    private = ec.generate_private_key(ec.SECP256R1())
    public = private.public_key()
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    # X.509 allows 64 letters here; who connects compares the alternative name below
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host[:64])])
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
    )
    signed = (
        x509.CertificateBuilder(subject, subject, public, x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, encipher_only=False, decipher_only=False, **usage
            ),
            critical=True,
        )
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(private, hashes.SHA256())
    )
    form, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    write_secret(key, private.private_bytes(encoding, form, serialization.NoEncryption()))
    write_bytes(certificate, signed.public_bytes(encoding))


def _change_tokens(folder: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    with in_turn(folder / ".tokens"):
        hashes = change(dict(TokenFile(folder)))
        write_bytes(folder / "tokens.json", json.dumps(hashes, indent=1).encode())

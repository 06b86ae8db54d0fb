"""Certificates of a local authority for TLS on this machine, and keys of nodes.

For trying things out: a deployment uses the certificates of its own authority.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

_DAYS = 30


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    """Whom to trust."""
    server: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    """An authority and a server's certificate for 127.0.0.1 and localhost, valid for a month."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = begin + datetime.timedelta(days=_DAYS)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = named("a local authority for trying things out")
    plain = x509.CertificateBuilder().issuer_name(authority_name).not_valid_before(begin).not_valid_after(end)
    authority = (
        plain.subject_name(authority_name)
        .public_key(authority_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    places = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    server = (
        plain.subject_name(named("localhost"))
        .public_key(server_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    made.server.write_bytes(server.public_bytes(Encoding.PEM))
    _secret(made.server_key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def make_node_key(folder: Path, name: str) -> Path:
    """A node's private key; its public key lies beside it, with the ending .pub."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    _secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public_of(path).write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return path


def public_of(key: Path) -> Path:
    """Where the public key lies."""
    return key.with_name(key.name + ".pub")


def _secret(path: Path, data: bytes) -> None:
    """A file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)

"""Certificates and keys of a deployment, made with `cryptography` (Flower installs it).

The authority `ca` signs the server's certificate, which is valid for the given names and
addresses; every SuperNode has a key pair. Private keys are created readable by their owner only
(mode 600). No key is replaced, but the server's if that is what was asked for. Only *.crt and
*.pub are for others.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from udjfl._files import as_argument, make_private_folder
from udjfl.errors import DeploymentError

CA_DAYS, SERVER_DAYS = 3650, 397
LONGEST_NAME = 64  # characters of a subject; what clients compare has no such limit
SECRET_BYTES = 32
RESTORE = "restore it from a copy; without one, all keys have to be made anew"
REMEDIES = {  # of a damaged file, by its name
    "ca.crt": "restore it: every node has a copy",
    "ca.key": RESTORE,
    "server.crt": "`udjfl flower keys {folder} --renew --host NAME` makes another",
    "server.key": "`udjfl flower keys {folder} --renew` makes another",
}


def make_ca(folder: Path, name: str = "udjfl federation") -> Path:
    """Make the federation's certificate authority, `ca.key` and `ca.crt`; return the latter."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _certificate_builder(subject, subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", _to_pem(key))
    return write_public(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(folder: Path, hosts: Sequence[str], into: Path | None = None) -> Path:
    """Make `server.key` and `server.crt` for these names and addresses; return the latter.

    The authority in `folder` signs the certificate. The files are made in the same folder, or
    another.
    """
    authority, authority_key = _load_pair(folder, "ca")
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:LONGEST_NAME])])
    certificate = (
        _certificate_builder(subject, authority.subject, key, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    into = into or folder
    write_private(into / "server.key", _to_pem(key))
    return write_public(into / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))


def renew_server_certificate(folder: Path, hosts: Sequence[str] = ()) -> Path:
    """Replace `server.key` and `server.crt`, for the same names unless others are given."""
    _load_pair(folder, "ca")
    hosts = hosts or read_hosts(folder / "server.crt")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        make_server_certificate(folder, hosts, Path(made))
        for name in ("server.key", "server.crt"):  # the names are in the latter, until the end
            (Path(made) / name).replace(folder / name)
    return folder / "server.crt"


def read_hosts(path: Path) -> list[str]:
    """Return the names and addresses that a certificate is for."""
    extensions = load_certificate(path).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise _damaged(path, "it is for no host") from None
    return [str(name.value) for name in names]


def read_expiry(path: Path) -> datetime.datetime:
    """Return until when a certificate is valid."""
    return load_certificate(path).not_valid_after_utc


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; raise an error that says what to do if the file holds none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise _damaged(path, "it holds no certificate") from None


def check_server_pair(folder: Path) -> None:
    """Raise an error unless `server.crt` is that of `server.key`, and signed by `ca.crt`."""
    _load_pair(folder, "server")
    check_authority(folder)


def check_authority(folder: Path) -> None:
    """Raise an error unless `ca.crt` is a certificate, and signed `server.crt` if there is one."""
    authority = load_certificate(folder / "ca.crt")
    if not (folder / "server.crt").exists():
        return
    certificate = load_certificate(folder / "server.crt")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        reason = (
            "another authority signed server.crt (if ca.crt is the right one, "
            f"`udjfl flower keys {as_argument(folder.parent)} --renew` makes another server.crt)"
        )
        raise _damaged(folder / "ca.crt", reason) from None


def _load_pair(folder: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read a certificate and its key, which have to belong together."""
    certificate, path = load_certificate(folder / f"{name}.crt"), folder / f"{name}.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _damaged(path, "it holds no key without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise _damaged(path, f"it is not the key of {name}.crt")
    return certificate, key


def _damaged(path: Path, reason: str) -> DeploymentError:
    remedy = REMEDIES.get(path.name, RESTORE).format(folder=as_argument(path.parent.parent))
    return DeploymentError(f"{path} cannot be used: {reason}; {remedy}")


def make_node_key(folder: Path, name: str) -> Path:
    """Make a SuperNode's key pair, `name` and `name.pub`, in OpenSSH format; return the former."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path = write_private(folder / name, private)
    write_public(folder / f"{name}.pub", public + f" {name}\n".encode())
    return path


def make_secret(folder: Path, name: str) -> Path:
    """Make what a SuperNode and its executor share, `name.secret`, unless it exists already."""
    path = folder / f"{name}.secret"
    return path if path.exists() else write_private(path, secrets.token_bytes(SECRET_BYTES))


def fingerprint(path: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate, as openssl prints it."""
    return load_certificate(path).fingerprint(hashes.SHA256()).hex(":").upper()


def write_private(path: Path, content: bytes) -> Path:
    """Create a file that only its owner can read, from the moment it exists."""
    return _write_new(path, content, 0o600)


def write_public(path: Path, content: bytes) -> Path:
    """Create a file that everybody can read."""
    return _write_new(path, content, 0o644)


def _write_new(path: Path, content: bytes, mode: int) -> Path:
    make_private_folder(path.parent)
    # O_EXCL: neither an old key nor a symbolic link is ever overwritten.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    return path


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks of machines differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

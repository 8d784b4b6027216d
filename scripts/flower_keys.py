"""Certificates and keys of a Flower deployment, made with `cryptography`, which Flower installs anyway.

    python scripts/flower_keys.py ca FOLDER                     ca.key and ca.crt: who signs the server's certificate
    python scripts/flower_keys.py server FOLDER HOST [HOST ...] server.key and server.crt, for these names and addresses
    python scripts/flower_keys.py node FOLDER NAME              NAME and NAME.pub: the key pair of one SuperNode

Private keys are readable by their owner alone (mode 600) from the moment they exist, and a file that is there already is
never replaced. Only *.crt and *.pub are ever sent to anybody.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS, SERVER_DAYS = 3650, 397


def make_ca(folder: Path, name: str = "udjfl federation") -> Path:
    """A certificate authority of the federation's own: `ca.key` and `ca.crt`. Returns the certificate's path."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _unsigned(subject, subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", _pem(key))
    return write_public(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(folder: Path, hosts: list[str]) -> Path:
    """`server.key` and `server.crt`, signed by the authority in the same folder, for these host names and addresses."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    authority_key = serialization.load_pem_private_key(
        (folder / "ca.key").read_bytes(), password=None
    )
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey), "ca.key is not one of make_ca"
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    certificate = (
        _unsigned(subject, authority.subject, key, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    write_private(folder / "server.key", _pem(key))
    return write_public(folder / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_node_key(folder: Path, name: str) -> Path:
    """A SuperNode's key pair, in the OpenSSH format Flower reads: `name` and `name.pub`. Returns the private key's path."""
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


def write_private(path: Path, content: bytes) -> Path:
    """A new file that only its owner can read, at every moment of its life."""
    return _write_new(path, content, 0o600)


def write_public(path: Path, content: bytes) -> Path:
    return _write_new(path, content, 0o644)


def _write_new(path: Path, content: bytes, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # O_EXCL: neither an old key nor a link that somebody else put there is ever written through.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    return path


def _unsigned(
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


def _usage(signs_certificates: bool) -> x509.KeyUsage:
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


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("ca", "server", "node"):
        kinds.add_parser(kind).add_argument("folder", type=Path)
    kinds.choices["server"].add_argument("hosts", nargs="+", metavar="HOST")
    kinds.choices["node"].add_argument("name")
    given = parser.parse_args(arguments)
    try:
        if given.kind == "ca":
            made = make_ca(given.folder)
        elif given.kind == "server":
            made = make_server_certificate(given.folder, given.hosts)
        else:
            made = make_node_key(given.folder, given.name).with_name(f"{given.name}.pub")
    except FileExistsError as error:
        sys.exit(f"{error.filename} is there already; move it away first, or choose another folder")
    except FileNotFoundError as error:
        sys.exit(
            f"{error.filename} is missing; make the authority first: python scripts/flower_keys.py ca {given.folder}"
        )
    print(f"{made} may be given to anybody; its private key, beside it, to nobody.")


if __name__ == "__main__":
    main()

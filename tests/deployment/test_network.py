"""Names and addresses of machines, alone and in HOST:PORT."""

from __future__ import annotations

import pytest

from udjfl.deployment.network import LOOPBACK, check_host, parse_address
from udjfl.errors import DeploymentError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8443", ("0.0.0.0", 8443)),
        ("fl.example.org:1", ("fl.example.org", 1)),
        ("[::]:65535", ("::", 65535)),
        ("[2001:db8::1]:8443", ("2001:db8::1", 8443)),
    ],
)
def test_host_and_port_are_told_apart(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "listen") == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":8443", "8443", "host", "host:", "host:x", "0.0.0.0:84x3", "host:8443/", "host:-1"),
        *("::1:8443", "[::1:8443", "::1]:8443", "[host]:1", "[]:1", "https://host:1", "a b:1"),
        *("host:0", "host:65536", "host:99999999999", "host:²"),
    ],
)
def test_anything_else_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(DeploymentError, match=r"^listen: .* (HOST:PORT|from 1 to 65535)"):
        parse_address(text, "listen")


def test_a_server_on_all_addresses_is_reached_in_its_own_family() -> None:
    assert (LOOPBACK["0.0.0.0"], LOOPBACK["::"]) == ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    "text",
    [
        *("fl.example.org", "localhost", "FL-1.example.org", "ward_3", "xn--sd-hka.example.org"),
        *("192.0.2.1", "2001:db8::1", ".".join(["a" * 60] * 4)),
    ],
)
def test_names_and_addresses_of_machines_are_accepted(text: str) -> None:
    check_host(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a b", "fl.example.org:8443", "https://fl.example.org", "a,b"),
        *("süd.example.org", "*.example.org", "fl.example.org.", ".example.org", "-x", "x-"),
        *("192.0.2.300", "192.0.2", "[2001:db8::1]", "fe80::1%eth0", "192.0.2.0/24"),
        *("a" * 64, ".".join(["a" * 60] * 5), "fl.example.org\n"),
    ],
)
def test_what_is_no_name_of_a_machine_is_an_error(text: str) -> None:
    with pytest.raises(DeploymentError, match=r"^host: .* is no name or address of a machine"):
        check_host(text)

"""Addresses of galleries, shown without passwords."""

import re

from aureole.errors import InvalidInputError

_URL = re.compile(r"(?P<scheme>[\w+.-]+://)(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)


def shown_address(where: str) -> str:
    """The address without password and connection parameters, for messages and logs.

    Examples
    --------
    >>> shown_address("postgresql://ann:secret@db.example:5432/shop?sslpassword=x#items")
    'postgresql://ann@db.example:5432/shop#items'
    >>> shown_address("galleries/shoes.lance")
    'galleries/shoes.lance'
    """
    url = _URL.fullmatch(where)
    if url is None:
        return where
    scheme, authority, rest = url.group("scheme", "authority", "rest")
    if _ambiguous(authority, rest):  # password and host cannot be distinguished
        return f"{scheme}…"
    user, _, host = authority.rpartition("@")
    user = user.partition(":")[0]
    path, _, table = rest.partition("#")
    path = path.partition("?")[0]
    return f"{scheme}{user + '@' if user else ''}{host}{path}{'#' + table if table else ''}"


def check_address(where: str) -> None:
    """Raise if part of a password could be mistaken for the host, port or table, and then be printed."""
    url = _URL.fullmatch(where)
    if url is not None and _ambiguous(url.group("authority"), url.group("rest")):
        raise InvalidInputError(
            "the address contains an @ that does not end the user and password. Write @ in them as %40, / as %2F, "
            "? as %3F and # as %23, or pass the password in PGPASSWORD or ~/.pgpass."
        )


def split_address(where: str) -> tuple[str, str]:
    """The address without its fragment, and the fragment. Every other character stays as it is.

    :func:`urllib.parse.urldefrag` drops the slashes of an empty host, which libpq needs.

    Examples
    --------
    >>> split_address("postgresql:///?service=shop#items")
    ('postgresql:///?service=shop', 'items')
    """
    address, _, fragment = where.partition("#")
    return address, fragment


def is_local(where: str) -> bool:
    """Whether the address is a path on this machine."""
    return "://" not in where


def _ambiguous(authority: str, rest: str) -> bool:
    return authority.count("@") > 1 or "@" in rest

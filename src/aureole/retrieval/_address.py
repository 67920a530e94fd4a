"""Addresses of galleries as they may be shown: without passwords."""

import re

from aureole.errors import InvalidInputError

_PARTS = re.compile(r"(?P<scheme>[\w+.-]+://)(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)


def shown_address(where: str) -> str:
    """The address for a message: neither a password nor the parameters of a connection are in it.

    Examples
    --------
    >>> shown_address("postgresql://ann:secret@db.example:5432/shop?sslpassword=x#items")
    'postgresql://ann@db.example:5432/shop#items'
    >>> shown_address("galleries/shoes.lance")
    'galleries/shoes.lance'
    """
    found = _PARTS.fullmatch(where)
    if found is None:
        return where
    scheme, authority, rest = found.group("scheme", "authority", "rest")
    if _misplaced(authority, rest):  # what is the password and what the host is not known
        return f"{scheme}…"
    user, _, host = authority.rpartition("@")
    user = user.partition(":")[0]
    path, _, table = rest.partition("#")
    path = path.partition("?")[0]
    return f"{scheme}{user + '@' if user else ''}{host}{path}{'#' + table if table else ''}"


def check_address(where: str) -> None:
    """Refuse an address in which a password would be taken for a host, a table or a port, and so be shown."""
    found = _PARTS.fullmatch(where)
    if found is not None and _misplaced(found.group("authority"), found.group("rest")):
        raise InvalidInputError(
            "the address has an @ that does not end the user and password. Write @ in them as %40, / as %2F, "
            "? as %3F and # as %23, or leave the password to PGPASSWORD or ~/.pgpass."
        )


def is_local(where: str) -> bool:
    """Whether the address is a path on this machine."""
    return "://" not in where


def _misplaced(authority: str, rest: str) -> bool:
    return authority.count("@") > 1 or "@" in rest

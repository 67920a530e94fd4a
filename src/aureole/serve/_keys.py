"""The API key of a service."""

import base64
import binascii
import hashlib
import hmac

from aureole.errors import InvalidInputError


def check_key(text: str, source: str) -> str:
    """Return a key without surrounding white space; raise unless it has 8 to 256 printable ASCII characters."""
    key = text.strip()
    if not (8 <= len(key) <= 256 and key.isascii() and key.isprintable()):
        raise InvalidInputError(f"{source} must hold 8 to 256 printable ASCII characters.")
    return key


def is_key(header: bytes | None, key: str) -> bool:
    """Return True if an Authorization header carries the key; compares digests in constant time.

    Programs send ``Bearer KEY``. Browsers ask for a name and a password, and send ``Basic``: any name, and the key.

    Examples
    --------
    >>> [is_key(header, "alices-secret") for header in (b"Bearer alices-secret", b"Bearer bobs-secret", None)]
    [True, False, False]
    """
    scheme, _, given = (header or b"").strip().partition(b" ")
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != b"bearer":
        return False
    digests = (hashlib.sha256(one).digest() for one in (given.strip(), key.encode()))
    return hmac.compare_digest(*digests)

"""Protection against requests that a browser sends for a page of another site."""

from urllib.parse import urlsplit

from aureole.serve._errors import ApiError


def check_same_site(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise a 403 if a browser sent the request for a page of another site.

    Browsers state the relation of the page to the service in Sec-Fetch-Site, and older ones its address in Origin;
    neither can be changed by a page. Programs send neither, and no page can make a browser omit both. A key alone is no
    protection, since browsers repeat a password that was typed for Basic authentication.
    """
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    sites, origins = found.get(b"sec-fetch-site", []), found.get(b"origin", [])
    if sites:
        allowed = all(site in (b"same-origin", b"none") for site in sites)
    else:
        hosts = [host.decode("latin-1").lower() for host in found.get(b"host", [])]
        allowed = all([_host_of(origin)] == hosts for origin in origins)
    if not allowed:
        raise ApiError("forbidden", "a page of another site cannot change anything here.")


def _host_of(origin: bytes) -> str | None:
    try:
        return urlsplit(origin.decode("latin-1").lower()).netloc
    except ValueError:
        return None

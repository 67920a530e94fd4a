"""Tags over HTTP: what comes back, who may write, and what pages of other sites cannot do."""

import csv
import http.server
import io
import json
import threading
import urllib.parse

import pytest

from aureole.retrieval import Tag, Tags
from aureole.serve import ApiKeys, TagService
from tests.serve.conftest import ask, error_of, names, running

KEY = {"Authorization": "Bearer a-secret-key"}
ADD = {"ids": ["item-001", "item-002"], "kind": "tag", "value": "blurred"}


@pytest.fixture
def tags(tmp_path):
    with Tags(tmp_path / "gallery.tags.sqlite") as opened:
        yield opened


@pytest.fixture
def tagged(service, tags):
    """(Place, tags) of a service whose tags clients may change."""
    with running(service, tags=TagService(tags), hosts=frozenset({"127.0.0.1"})) as place:
        yield place, tags


def get(place, path, **headers):
    status, _, body = ask(place, "GET", path, headers=headers)
    assert status == 200, body
    return json.loads(body)


def test_tags_come_and_go(tagged):
    place, tags = tagged
    status, _, body = ask(place, "POST", "/v1/tags", ADD | {"author": "Ann"})
    change = json.loads(body)
    assert (status, change["changed"]) == (200, 2)
    assert json.loads(ask(place, "POST", "/v1/tags", ADD)[2])["changed"] == 0
    ask(place, "POST", "/v1/tags", {"ids": ["item-001"], "kind": "relabel", "value": "dog"})
    found = get(place, "/v1/tags")
    assert (found["available"], found["writable"], found["reason"]) == (True, True, None)
    assert found["counts"] == [
        {"kind": "relabel", "value": "dog", "count": 1},
        {"kind": "tag", "value": "blurred", "count": 2},
    ]
    entries = get(place, "/v1/tags/entries?id=item-001&id=item-003")
    assert [(e["id"], e["kind"], e["value"]) for e in entries["entries"]] == [
        ("item-001", "relabel", "dog"),
        ("item-001", "tag", "blurred"),
    ]
    assert entries["entries"][1]["author"] == "Ann"
    ids = get(place, "/v1/tags/ids?kind=tag&value=blurred")
    assert ids == {"ids": ["item-001", "item-002"], "truncated": False}
    removal = {"ids": ["item-002"], "kind": "tag", "value": "blurred"}
    assert json.loads(ask(place, "POST", "/v1/tags/remove", removal)[2])["changed"] == 1
    assert ask(place, "DELETE", f"/v1/tags/changes/{change['number']}")[0] == 200
    assert [entry.kind for entry in tags.entries()] == ["relabel"]
    again = ask(place, "DELETE", f"/v1/tags/changes/{change['number']}")
    assert "undone already" in error_of(again, 422, "invalid_input")


def test_ids_of_any_kind_and_many_at_once(tagged):
    place, _ = tagged
    body = {"ids": names(), "kind": "tag", "value": "<b>all</b>"}
    status, _, answer = ask(place, "POST", "/v1/tags", body)
    assert (status, json.loads(answer)["changed"]) == (200, len(names()))
    found = ask(place, "GET", "/v1/tags/ids?kind=tag")
    assert b"<" not in found[2]
    assert json.loads(found[2])["ids"] == sorted(names())
    query = urllib.parse.urlencode([("id", name) for name in names()[-6:]])
    assert len(get(place, f"/v1/tags/entries?{query}")["entries"]) == 6
    many = {"ids": [f"i{i}" for i in range(10_001)], "kind": "tag", "value": "x"}
    error_of(ask(place, "POST", "/v1/tags", many), 422, "invalid_input")
    removal = body | {"ids": [f"i{i}" for i in range(10_000)]}
    assert json.loads(ask(place, "POST", "/v1/tags/remove", removal)[2])["changed"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"ids": []}, {"ids": ["nobody"]}, {"ids": ["item-001", "item-001"]}, {"ids": "item-001"},
        {"ids": [7]}, {"ids": ["\ud800"]}, {"ids": ["\0"]}, {"kind": "colour"}, {"kind": None}, {"value": ""},
        {"value": "x" * 65}, {"value": 5}, {"value": "a\x1b[0m"}, {"value": "a\u202eb"}, {"value": "\0"},
        {"author": "a" * 65}, {"author": "\n\x00"}, {"more": 1}, {"kind": "duplicate", "value": "nobody"},
        {"kind": "duplicate", "value": "item-001"}, {"kind": "note", "value": "x" * 4001},
        {"value": "'); DROP TABLE entries; --" * 3},
    ],
)  # fmt: skip
def test_wrong_changes_store_nothing(tagged, change):
    place, tags = tagged
    answer = ask(place, "POST", "/v1/tags", json.dumps(ADD | change).encode(), JSON)
    error_of(answer, 422, "invalid_input")
    assert b"<" not in answer[2]
    assert list(tags.entries()) == []


JSON = {"Content-Type": "application/json"}


def test_sql_in_values_is_text(tagged):
    place, _ = tagged
    value = "'); DROP TABLE entries; --"
    assert ask(place, "POST", "/v1/tags", ADD | {"value": value})[0] == 200
    query = urllib.parse.quote("' OR '1'='1")
    assert get(place, f"/v1/tags/ids?kind=tag&value={query}")["ids"] == []
    assert len(get(place, "/v1/tags/ids?kind=tag&value=" + urllib.parse.quote(value))["ids"]) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # a program
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:PORT"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://127.0.0.1:PORT"}, 200),  # an older browser
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:PORT"}, 403),
        ({"Sec-Fetch-Site": "odd"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),  # another service of this machine
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://127.0.0.1:PORT.evil.example"}, 403),
        ({"Origin": "http://user@127.0.0.1:PORT"}, 403),
        ({"Origin": "http://[oops"}, 403),
    ],
)
def test_pages_of_other_sites_change_nothing(tagged, headers, status):
    place, tags = tagged
    first = tags.add(["item-005"], "tag", "old")
    sent = {name: value.replace("PORT", str(place[1])) for name, value in headers.items()}
    for method, path, body in (
        ("POST", "/v1/tags", ADD),
        ("POST", "/v1/tags/remove", ADD),
        ("DELETE", f"/v1/tags/changes/{first.number}", None),
    ):
        answer = ask(place, method, path, body, sent)
        assert answer[0] == status
        if status == 403:
            error_of(answer, 403, "forbidden")
    if status == 403:
        assert [(entry.id, entry.value) for entry in tags.entries()] == [("item-005", "old")]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_changes_nothing(tagged, kind):
    place, tags = tagged
    for path in ("/v1/tags", "/v1/tags/remove"):
        body = json.dumps(ADD).encode()
        error_of(ask(place, "POST", path, body, {"Content-Type": kind}), 422, "invalid_input")
    assert list(tags.entries()) == []


def test_writing_needs_a_key_if_there_is_one(service, tags):
    with running(
        service, keys=ApiKeys({"default": "a-secret-key"}), tags=TagService(tags)
    ) as place:
        error_of(ask(place, "POST", "/v1/tags", ADD), 401, "unauthorized")
        error_of(ask(place, "DELETE", "/v1/tags/changes/1"), 401, "unauthorized")
        error_of(ask(place, "GET", "/v1/tags"), 401, "unauthorized")
        assert ask(place, "POST", "/v1/tags", ADD | {"author": "Ann"}, KEY)[0] == 200
        # the password that a browser repeats does not help a page of another site
        basic = {"Authorization": "Basic YW55OmEtc2VjcmV0LWtleQ==", "Sec-Fetch-Site": "cross-site"}
        error_of(ask(place, "POST", "/v1/tags", ADD, basic), 403, "forbidden")
    assert {entry.author for entry in tags.entries()} == {"Ann"}


def test_the_author_is_the_name_of_the_key(service, tags):
    keys = ApiKeys({"carol": "carols-secret", "dave": "daves-secret"})
    with running(service, keys=keys, tags=TagService(tags)) as place:
        for secret in ("carols-secret", "daves-secret"):
            body = {"ids": ["item-001"], "kind": "tag", "value": secret, "author": "Ann"}
            sent = {"Authorization": f"Bearer {secret}"}
            assert ask(place, "POST", "/v1/tags", body, sent)[0] == 200
    assert [(e.author, e.value) for e in tags.entries()] == [
        ("carol", "carols-secret"),
        ("dave", "daves-secret"),
    ]


def test_read_only_tags_and_no_tags(service, tags):
    tags.add(["item-001"], "tag", "x")
    reader = Tags(tags.file, read_only=True)
    for own, code, status in (
        (TagService(reader), "forbidden", 403),
        (TagService(tags, refusal="changing tags needs an API key."), "forbidden", 403),
    ):
        with running(service, tags=own) as place:
            found = get(place, "/v1/tags")
            assert (found["available"], found["writable"], len(found["counts"])) == (True, False, 1)
            for path in ("/v1/tags", "/v1/tags/remove"):
                error_of(ask(place, "POST", path, ADD), status, code)
            error_of(ask(place, "DELETE", "/v1/tags/changes/1"), status, code)
    with running(service) as place:
        assert get(place, "/v1/tags")["available"] is False
        error_of(ask(place, "GET", "/v1/tags/ids?kind=tag"), 422, "invalid_input")
        error_of(ask(place, "GET", "/v1/tags/export"), 422, "invalid_input")
        error_of(ask(place, "POST", "/v1/tags", ADD), 403, "forbidden")
    assert len(list(tags.entries())) == 1


def test_a_damaged_file_is_a_503_and_the_service_goes_on(service, tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"x" * 10_000)
    with running(service, tags=TagService(Tags(broken))) as place:
        message = error_of(ask(place, "GET", "/v1/tags"), 503, "unavailable")
        assert str(tmp_path) not in message
        error_of(ask(place, "POST", "/v1/tags", ADD), 503, "unavailable")
        assert ask(place, "GET", "/v1/about")[0] == 200


def test_exports(tagged):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    place, tags = tagged
    tags.load(
        [
            Tag("item-001", "note", "=1+1"),
            Tag("item-002", "relabel", "dog"),
            Tag("gone", "relabel", ""),
        ]
    )
    status, headers, body = ask(place, "GET", "/v1/tags/export?format=csv")
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert headers["content-disposition"] == 'attachment; filename="tags.csv"'
    rows = list(csv.reader(io.StringIO(body.decode())))
    assert ["item-001", "note", "'=1+1"] in [row[:3] for row in rows]
    lines = ask(place, "GET", "/v1/tags/export?format=jsonl")[2].splitlines()
    assert {json.loads(line)["value"] for line in lines} == {"=1+1", "dog", ""}
    table = parquet.read_table(io.BytesIO(ask(place, "GET", "/v1/tags/export?format=parquet")[2]))
    assert table.column("kind").to_pylist() == ["relabel", "note", "relabel"]
    queue = ask(place, "GET", "/v1/tags/export?what=queue&format=jsonl")[2].splitlines()
    (row,) = map(json.loads, queue)
    assert (row["id"], row["label"], row["new_label"]) == ("item-002", "<b>", "dog")
    assert row["text"] == "picture 2 & more"


class Hostile(http.server.BaseHTTPRequestHandler):
    """A page of another site that tries to tag items by a form, by fetch in each mode, and by an image."""

    page = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *arguments):
        pass


HOSTILE_PAGE = """<!doctype html><title>other site</title>
<form id="f" method="post" action="TARGET/v1/tags" enctype="text/plain">
<input name='{"ids":["item-001"],"kind":"tag","value":"by a form","author":"' value='"}'></form>
<script>
window.done = (async () => {
  const body = JSON.stringify({ ids: ["item-001"], kind: "tag", value: "by fetch" });
  const found = [];
  for (const mode of ["cors", "no-cors"]) {
    for (const type of ["application/json", "text/plain"]) {
      const routes = [["POST", "/v1/tags"], ["POST", "/v1/tags/remove"], ["DELETE", "/v1/tags/changes/1"]];
      for (const [method, path] of routes) {
        try {
          const init = { mode, method, credentials: "include", headers: { "Content-Type": type } };
          if (method === "POST") init.body = body;
          const answer = await fetch("TARGET" + path, init);
          found.push(answer.type === "opaque" ? "opaque" : answer.status);
        } catch (error) {
          found.push("refused");
        }
      }
    }
  }
  navigator.sendBeacon("TARGET/v1/tags", new Blob([body], { type: "text/plain" }));
  return found;
})();
</script>"""


@pytest.mark.slow
def test_a_real_page_of_another_site_changes_nothing(tagged):
    pytest.importorskip("playwright")
    from tests.web.visit import browser, chromium

    if chromium() is None:
        pytest.skip("Chromium is not installed")
    place, tags = tagged
    tags.add(["item-009"], "tag", "before")
    target = f"http://{place[0]}:{place[1]}"
    Hostile.page = HOSTILE_PAGE.replace("TARGET", target).encode()
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        with browser() as found:
            page = found.new_page()
            statuses = {}
            page.on("response", lambda answer: statuses.setdefault(answer.url, answer.status))
            page.goto(f"http://localhost:{other.server_port}/")
            results = page.evaluate("window.done")
            assert len(results) == 12
            assert set(results) <= {"refused", "opaque"}
            page.evaluate("document.getElementById('f').submit()")
            page.wait_for_url(f"{target}/v1/tags")
            assert "error" in page.content()
            own = found.new_page()  # the same requests of the service's own page are allowed
            own.goto(f"{target}/")
            status = own.evaluate(
                """async () => (await fetch("v1/tags", {
                  method: "POST", headers: { "Content-Type": "application/json" },
                  body: JSON.stringify({ ids: ["item-001"], kind: "tag", value: "own page" }) })).status"""
            )
            assert status == 200
    finally:
        other.shutdown()
        other.server_close()
    assert {(e.id, e.value) for e in tags.entries()} == {
        ("item-009", "before"),
        ("item-001", "own page"),
    }

"""The download, against a server on this machine."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import pytest

from aureole.errors import AureoleError, InvalidInputError
from aureole.records import file_hash
from aureole_paper import download as module
from aureole_paper.download import SOURCES, Member, Source, download


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server():
    """A server of ``files`` (path to content) that notes what was ``asked`` for; ``cut`` leaves bytes out."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            if self.path in server.moved:
                self.send_response(302)
                self.send_header("Location", server.moved[self.path])
                self.end_headers()
            elif self.path in server.files:
                content = server.files[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - server.cut])
            else:
                self.send_error(404)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.moved, server.asked, server.cut = {}, {}, [], 0
    server.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def offer(server, monkeypatch):
    """Puts a file on the server and among the sources, the only ones that the test knows."""
    sources = []
    monkeypatch.setattr(module, "SOURCES", sources)

    def add(name, content, members=()):
        server.files[f"/{name}"] = content
        url = f"{server.base}/{name}"
        sources.append(Source(url, sha256(content), len(content), f"some/{name}", members))

    return add


def archive(*entries):
    """A tar.gz of (name, content) files and of finished TarInfo entries."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                tar.addfile(info, io.BytesIO(entry[1]))
    return out.getvalue()


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


CONTENT = bytes(range(256)) * 4000  # more than one block


def test_files_arrive_whole_with_progress(tmp_path, offer):
    offer("one.npy", CONTENT)
    offer("two.csv", b"2\n")
    calls = []
    found = download(tmp_path, progress=lambda *call: calls.append(call))
    assert found == [tmp_path / "some" / "one.npy", tmp_path / "some" / "two.csv"]
    assert found[0].read_bytes() == CONTENT
    assert files_below(tmp_path) == ["some/one.npy", "some/two.csv"]
    done = [call[1] for call in calls if call[0] == "one.npy"]
    assert done == sorted(done)
    assert len(done) > 1
    assert calls[len(done) - 1] == ("one.npy", len(CONTENT), len(CONTENT))


def test_files_with_the_right_hash_are_kept(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    offer("two.csv", b"2\n")
    download(tmp_path, names=["one.npy"])
    (tmp_path / "some" / "two.csv").write_bytes(b"3\n")
    download(tmp_path)
    assert server.asked == ["/one.npy", "/two.csv"]
    assert (tmp_path / "some" / "two.csv").read_bytes() == b"2\n"


def test_a_mirror_holds_the_files_under_their_names(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    server.files["/mirror/one.npy"] = CONTENT
    download(tmp_path, base=f"{server.base}/mirror/")
    assert server.asked == ["/mirror/one.npy"]


def test_unknown_names_are_refused(tmp_path, offer):
    offer("one.npy", CONTENT)
    with pytest.raises(InvalidInputError, match=r"names has 'three', but the files are one\.npy"):
        download(tmp_path, names=["three"])


def test_a_wrong_hash_leaves_nothing(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    wrong = CONTENT[:-1] + b"!"
    server.files["/one.npy"] = wrong
    with pytest.raises(AureoleError) as caught:
        download(tmp_path)
    for part in ("some/one.npy", sha256(CONTENT), sha256(wrong)):
        assert part in str(caught.value)
    assert files_below(tmp_path) == []
    assert list((tmp_path / "some").iterdir()) == []


def test_a_wrong_file_does_not_replace_the_one_there(tmp_path, offer, server):
    offer("two.csv", b"2\n")
    server.files["/two.csv"] = b"9\n"
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "two.csv").write_bytes(b"3\n")
    with pytest.raises(AureoleError, match="SHA-256"):
        download(tmp_path)
    assert (tmp_path / "some" / "two.csv").read_bytes() == b"3\n"


def test_a_truncated_body_leaves_nothing(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    server.cut = 1000
    with pytest.raises(AureoleError, match=f"{len(CONTENT)} bytes, but only {len(CONTENT) - 1000}"):
        download(tmp_path)
    assert files_below(tmp_path) == []


def test_a_larger_body_is_not_read_to_its_end(tmp_path, offer, server):
    offer("two.csv", b"2\n")
    server.files["/two.csv"] = CONTENT * 4
    sizes = []
    with pytest.raises(AureoleError, match="2 bytes, but more came"):
        download(tmp_path, progress=lambda name, done, size: sizes.append(done))
    assert max(sizes) < len(CONTENT)
    assert files_below(tmp_path) == []


def test_a_missing_file_is_named(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    server.files.clear()
    with pytest.raises(AureoleError, match=r"/one\.npy could not be fetched .* 404"):
        download(tmp_path)


def test_a_server_that_is_not_there_is_named(tmp_path, offer):
    offer("one.npy", CONTENT)
    with pytest.raises(AureoleError, match=r"http://127\.0\.0\.1:1/one\.npy could not be fetched"):
        download(tmp_path, base="http://127.0.0.1:1")


@pytest.mark.parametrize(
    "base", ["file:///etc", "ftp://127.0.0.1", "http://example.org", "http://127.0.0.1.example.org"]
)
def test_other_addresses_are_refused(tmp_path, offer, base):
    offer("one.npy", CONTENT)
    with pytest.raises(InvalidInputError, match="is refused: an address must be https"):
        download(tmp_path, base=base)


def test_redirects_stay_within_the_allowed_addresses(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    server.files["/new"] = server.files.pop("/one.npy")
    server.moved["/one.npy"] = f"{server.base}/new"
    download(tmp_path)
    assert server.asked == ["/one.npy", "/new"]
    server.moved["/one.npy"] = "http://example.org/one.npy"
    with pytest.raises(InvalidInputError, match=r"http://example\.org/one\.npy is refused"):
        download(tmp_path / "again")


MEMBERS = tuple(Member(f"in/{n}.bin", sha256(n.encode()), 1) for n in "ab")


def test_an_archive_is_unpacked_and_not_kept(tmp_path, offer, server):
    folder = tarfile.TarInfo("in")
    folder.type = tarfile.DIRTYPE
    offer(
        "all.tar.gz",
        archive(folder, ("in/a.bin", b"a"), ("in/x.txt", b"x"), ("in/b.bin", b"b")),
        MEMBERS,
    )
    found = download(tmp_path)
    assert found == [tmp_path / "some" / "in" / f"{n}.bin" for n in "ab"]
    assert files_below(tmp_path) == ["some/in/a.bin", "some/in/b.bin"]
    download(tmp_path)
    assert server.asked == ["/all.tar.gz"]
    found[0].unlink()
    download(tmp_path)
    assert server.asked == ["/all.tar.gz"] * 2
    assert found[0].read_bytes() == b"a"


def test_an_archive_that_is_there_is_not_fetched_again(tmp_path, offer, server):
    content = archive(("in/a.bin", b"a"), ("in/b.bin", b"b"))
    offer("all.tar.gz", content, MEMBERS)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "all.tar.gz").write_bytes(content)
    download(tmp_path)
    assert server.asked == []
    assert files_below(tmp_path) == ["some/in/a.bin", "some/in/b.bin"]


def test_an_archive_writes_its_known_members_alone(tmp_path, offer):
    entries = [
        ("../evil", b"e"),
        ("../../evil", b"e"),
        (str(tmp_path / "evil"), b"e"),
        ("in/c.bin", b"c"),
    ]
    link = tarfile.TarInfo("in/evil")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    offer("all.tar.gz", archive(*entries, link, ("in/a.bin", b"a"), ("in/b.bin", b"b")), MEMBERS)
    download(tmp_path / "data")
    assert files_below(tmp_path) == ["data/some/in/a.bin", "data/some/in/b.bin"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_link_in_place_of_a_member_is_refused(tmp_path, offer, kind):
    link = tarfile.TarInfo("in/b.bin")
    link.type, link.linkname = kind, "in/a.bin"
    offer("all.tar.gz", archive(("in/a.bin", b"a"), link), MEMBERS)
    with pytest.raises(AureoleError, match=r"has no regular file in/b\.bin"):
        download(tmp_path)
    assert not (tmp_path / "some" / "in" / "b.bin").exists()


@pytest.mark.parametrize(("content", "said"), [(b"bb", "more came"), (b"c", "SHA-256")])
def test_a_member_of_other_content_is_refused(tmp_path, offer, content, said):
    offer("all.tar.gz", archive(("in/a.bin", b"a"), ("in/b.bin", content)), MEMBERS)
    with pytest.raises(AureoleError, match=rf"in/b\.bin should .*{said}"):
        download(tmp_path)
    assert not (tmp_path / "some" / "in" / "b.bin").exists()


def test_the_sources_are_official_and_apart():
    assert {urlsplit(s.url).scheme for s in SOURCES} == {"https"}
    assert len({s.name for s in SOURCES}) == len(SOURCES) == 8
    assert all(s.url.endswith(f"/{s.name}") for s in SOURCES)
    assert all(len(x.sha256) == 64 for s in SOURCES for x in (s, *s.members))


def test_the_sources_are_the_files_at_hand(shared_data):
    there = [s for s in SOURCES if (shared_data / s.target).is_file()]
    for source in there:
        path = shared_data / source.target
        assert (file_hash(path), path.stat().st_size) == (source.sha256, source.size)
    assert len(there) >= 7

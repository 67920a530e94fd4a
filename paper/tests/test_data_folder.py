"""The data folder, and the download against a server on this machine."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import pytest

from aureole.errors import AureoleError, InvalidInputError, MissingInputError
from aureole.records import file_hash
from aureole_paper import data_folder as module
from aureole_paper.cifar import load_fold
from aureole_paper.data_folder import SOURCES, Source, data_folder, download, require_file
from aureole_paper.text_data import load_captions

CONTENT = bytes(range(256)) * 4000  # several blocks
MEMBERS = {f"in/{n}.bin": hashlib.sha256(n.encode()).hexdigest() for n in "ab"}


@pytest.fixture
def server():
    """A server of ``files`` (path to content) that lists the paths it was ``asked`` for; ``cut`` truncates bodies."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            if self.path not in server.files:
                self.send_error(404)
                return
            content = server.files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) - server.cut])

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.cut = {}, [], 0
        server.base = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def offer(server, monkeypatch):
    """Puts a file on the server and among the sources, the only ones in the test."""
    sources = []
    monkeypatch.setattr(module, "SOURCES", sources)

    def add(name, content, members=None):
        server.files[f"/{name}"] = content
        sha256 = hashlib.sha256(content).hexdigest()
        sources.append(Source(f"{server.base}/{name}", sha256, f"some/{name}", members or {}))

    return add


def archive(*entries):
    """A tar.gz of (name, content) files; a content of None is a link out of the folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def test_files_arrive_and_those_with_the_right_hash_are_kept(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    offer("two.csv", b"2\n")
    paths = download(tmp_path)
    assert paths == [tmp_path / "some" / "one.npy", tmp_path / "some" / "two.csv"]
    assert paths[0].read_bytes() == CONTENT
    paths[1].write_bytes(b"3\n")
    download(tmp_path)
    assert server.asked == ["/one.npy", "/two.csv", "/two.csv"]
    assert paths[1].read_bytes() == b"2\n"
    assert files_below(tmp_path) == ["some/one.npy", "some/two.csv"]


def test_a_mirror_holds_the_files_under_their_names(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    server.files["/mirror/one.npy"] = CONTENT
    download(tmp_path, base=f"{server.base}/mirror/")
    assert server.asked == ["/mirror/one.npy"]


def test_a_wrong_or_truncated_file_does_not_replace_the_one_there(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "one.npy").write_bytes(b"old")
    server.cut = 1000
    with pytest.raises(AureoleError, match=r"cannot download .*/one\.npy"):
        download(tmp_path)
    server.cut, server.files["/one.npy"] = 0, CONTENT[:-1] + b"!"
    with pytest.raises(AureoleError, match="SHA256"):
        download(tmp_path)
    assert (tmp_path / "some" / "one.npy").read_bytes() == b"old"
    assert files_below(tmp_path) == ["some/one.npy"]


def test_missing_files_and_servers_are_named(tmp_path, offer, server):
    offer("one.npy", CONTENT)
    server.files.clear()
    with pytest.raises(AureoleError, match=r"cannot download .*/one\.npy .*404"):
        download(tmp_path)
    with pytest.raises(AureoleError, match=r"cannot download http://127\.0\.0\.1:1/one\.npy"):
        download(tmp_path, base="http://127.0.0.1:1")


def test_an_archive_is_extracted_and_deleted(tmp_path, offer, server):
    content = archive(("in/a.bin", b"a"), ("in/x.txt", b"x"), ("in/b.bin", b"b"))
    offer("all.tar.gz", content, MEMBERS)
    paths = download(tmp_path)
    assert paths == [tmp_path / "some" / "in" / f"{n}.bin" for n in "ab"]
    assert files_below(tmp_path) == ["some/in/a.bin", "some/in/b.bin"]
    download(tmp_path)
    assert server.asked == ["/all.tar.gz"]
    paths[0].unlink()
    (tmp_path / "some" / "all.tar.gz").write_bytes(content)
    download(tmp_path)
    assert server.asked == ["/all.tar.gz"]  # the archive was there already
    assert paths[0].read_bytes() == b"a"


def test_only_the_known_members_of_an_archive_are_extracted(tmp_path, offer):
    evil = [("../evil", b"e"), (str(tmp_path / "evil"), b"e"), ("in/evil", None)]
    good = [("in/c.bin", b"c"), ("in/a.bin", b"a"), ("in/b.bin", b"b")]
    offer("all.tar.gz", archive(*evil, *good), MEMBERS)
    download(tmp_path / "data")
    assert files_below(tmp_path) == ["data/some/in/a.bin", "data/some/in/b.bin"]


def test_a_link_out_of_the_folder_in_place_of_a_member_is_refused(tmp_path, offer):
    offer("all.tar.gz", archive(("in/a.bin", b"a"), ("in/b.bin", None)), MEMBERS)
    with pytest.raises(tarfile.FilterError):
        download(tmp_path)
    assert not (tmp_path / "some" / "in" / "b.bin").exists()


def test_the_sources_are_official_and_the_files_at_hand(shared_data):
    assert {urlsplit(source.url).scheme for source in SOURCES} == {"https"}
    names = [source.target.rpartition("/")[2] for source in SOURCES]
    assert len(set(names)) == len(SOURCES) == 8
    assert all(s.url.endswith(f"/{name}") for s, name in zip(SOURCES, names, strict=True))
    there = [source for source in SOURCES if (shared_data / source.target).is_file()]
    assert len(there) >= 7
    for source in there:
        assert file_hash(shared_data / source.target) == source.sha256


@pytest.mark.parametrize(
    ("load", "remedy"),
    [
        (lambda f: load_fold(f, 0), r"csv is missing.*run aureole_paper.data_folder.download\("),
        (lambda f: load_captions(f, "val"), "gz is missing.*download it from Multi30k"),
        (lambda f: require_file(f / "weights" / "odd.npz"), "npz is missing. Check the data folder.$"),
    ],
)  # fmt: skip
def test_missing_files_are_named_with_where_to_get_them(tmp_path, load, remedy):
    with pytest.raises(MissingInputError, match=remedy):
        load(tmp_path)


def test_data_folder_is_the_given_one_or_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("AUREOLE_DATA", str(tmp_path))
    (tmp_path / "given").mkdir()
    assert data_folder(None) == tmp_path
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("AUREOLE_DATA", str(tmp_path / "gone"))
    with pytest.raises(InvalidInputError, match=r"gone \(from AUREOLE_DATA\) does not exist"):
        data_folder(None)
    monkeypatch.delenv("AUREOLE_DATA")
    with pytest.raises(InvalidInputError, match=r"--data-dir or AUREOLE_DATA .*download"):
        data_folder(None)

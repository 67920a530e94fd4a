"""Atomic writes, and errors of the disk."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aureole._io import atomic_file, atomic_folder, atomic_write, reporting_writes
from aureole.errors import AureoleError, InvalidInputError, WriteError


def test_a_file_appears_at_the_end_readable_by_others_and_its_folder_is_made(tmp_path):
    path = tmp_path / "deep" / "page.html"
    with atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" and half")
    assert path.read_text() == "half and half"
    assert atomic_write(path, "über\n") == path
    assert path.read_bytes() == "über\n".encode()


def test_modes_are_those_of_open(tmp_path):
    before = os.umask(0o077)
    try:
        private = atomic_write(tmp_path / "key.txt", b"one")
        opened = tmp_path / "opened.txt"
        opened.write_bytes(b"x")
        assert mode_of(private) == mode_of(opened) == 0o600
        os.umask(0o022)
        assert mode_of(atomic_write(private, b"two")) == 0o600
        assert mode_of(atomic_write(tmp_path / "page.html", b"x")) == 0o644
        private.chmod(0o440)
        assert mode_of(atomic_write(private, b"three")) == 0o440
    finally:
        os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_the_file_before_and_nothing_beside_it(tmp_path, error):
    path = atomic_write(tmp_path / "config.json", b"{}")

    def fail():
        with atomic_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\ud800")
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_replaces_what_a_killed_writer_left(tmp_path):
    path = tmp_path / "gallery.lance"
    with atomic_folder(path) as part:
        part.mkdir()
        (part / "old").touch()
        shutil.copytree(part, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(part)  # as after a kill
    with atomic_folder(path) as part:
        assert not part.exists()
        part.mkdir()
    assert list(tmp_path.iterdir()) == [path]
    assert not list(path.iterdir())


def test_a_folder_that_is_not_empty_is_not_replaced(tmp_path):
    path = tmp_path / "gallery.lance"
    path.mkdir()
    (path / "rows").touch()
    with (
        pytest.raises(WriteError, match=r"gallery\.lance cannot be written: Directory not empty"),
        atomic_folder(path) as part,
    ):
        part.mkdir()
    assert [list(tmp_path.iterdir()), list(path.iterdir())] == [[path], [path / "rows"]]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"disk full while writing .*page\.html\. Free some space"),
        (errno.EDQUOT, "disk full"),
        (
            errno.EROFS,
            r"page\.html cannot be written: the file system is read-only\. Choose another",
        ),
        (errno.EACCES, "permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_errors_of_the_disk_say_what_to_do(tmp_path, monkeypatch, number, message):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number), str(tmp_path / "page.html"))

    monkeypatch.setattr("pathlib.Path.open", fails)
    with pytest.raises(WriteError, match=message) as caught:
        atomic_write(tmp_path / "page.html", b"x")
    assert caught.value.errno == number
    assert isinstance(caught.value, AureoleError)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_errors_of_other_files_and_packages(tmp_path):
    with pytest.raises(PermissionError), reporting_writes(tmp_path / "page.html"):
        raise PermissionError(errno.EACCES, "denied", "/elsewhere/table.csv")
    with pytest.raises(OSError, match="refused"), reporting_writes(tmp_path):
        raise OSError(errno.ECONNREFUSED, "refused")


def test_a_file_size_limit_is_a_write_error(tmp_path):
    code = (
        "import resource, signal, sys; from pathlib import Path; from aureole._io import atomic_write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: atomic_write(Path(sys.argv[1]), b'x' * 10_000)\n"
        "except OSError as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", code, tmp_path / "page.html"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("WriteError file size limit reached while writing ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["s3://bucket/page.html", "gs://b/x/page.html", "az://b/page.html"]
)
def test_addresses_are_not_folders(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="address of a remote store"):
        atomic_write(Path(text), b"x")
    assert not list(tmp_path.iterdir())
    (tmp_path / "c:").mkdir()
    assert atomic_write(Path("c:/page.html"), b"x").exists()

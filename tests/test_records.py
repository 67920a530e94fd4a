"""Records: what is read back, what is no record, and whose commit they name."""

import json
import shutil
import subprocess
from dataclasses import asdict

import pytest

from aureole import records
from aureole.errors import InvalidInputError
from aureole.records import Record, read_record, write_record


def test_a_record_comes_back_as_it_was(tmp_path):
    record = Record("demo/κ", {"error": 0.25, "curve": [1, 2]}, command="aureole demo", seed=4)
    assert read_record(write_record(record, tmp_path / "deep" / "r.json")) == record
    plain = json.dumps(asdict(record), ensure_ascii=False)
    (tmp_path / "r.json").write_text(plain, encoding="utf-8")
    assert read_record(tmp_path / "r.json") == record


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe{\0}\0", b"\x80", b"", b"{", b"[]", b"3", b'"text"', b"null", b"{}", b'{"format": 1}',
     b'{"format": 1, "name": "a", "other": 3}', b'{"format": 2}'],
)  # fmt: skip
def test_what_is_no_record_is_said_with_its_name(tmp_path, content):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"r\.json (is not a record|has record format)"):
        read_record(tmp_path / "r.json")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_only_the_repository_that_tracks_the_package_is_recorded(tmp_path, monkeypatch):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, stdout=-1)
        return done.stdout.decode().strip()

    git("init", "--quiet")
    (tmp_path / ".gitignore").write_text("venv\n")
    module = tmp_path / "venv" / "records.py"
    module.parent.mkdir()
    module.write_text("a = 1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "a project with a virtual environment")
    monkeypatch.setattr(records, "__file__", str(module))
    assert Record("demo", {}, command="demo").commit == "unknown"
    git("add", "--force", "venv")
    git("commit", "--quiet", "-m", "the package itself")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert Record("demo", {}, command="demo").commit == commit
    module.write_text("a = 2\n")
    assert Record("demo", {}, command="demo").commit == commit + "+"

"""Records: what is read back, and what is no record."""

import json
from dataclasses import asdict

import pytest

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

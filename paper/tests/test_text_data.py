"""Sentences: captions, ambiguous ones, judged and scored pairs."""

import gzip
import json

import pytest

from aureole.errors import InvalidInputError
from aureole_paper.text_data import (
    load_ambient,
    load_captions,
    load_chaos_nli,
    load_stsb,
    read_json_lines,
    read_lines,
)


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text if isinstance(text, bytes) else text.encode()))


def test_captions_go_by_photo(tmp_path):
    for number in range(1, 6):
        write(tmp_path / "text" / f"multi30k_val.{number}.en.gz", f"a{number}\nb\u2028{number}\n")
    assert load_captions(tmp_path, "val") == [
        [f"a{number}" for number in range(1, 6)],
        [f"b\u2028{number}" for number in range(1, 6)],  # no end of line to us
    ]
    write(tmp_path / "text" / "multi30k_val.3.en.gz", "a3\n")
    with pytest.raises(InvalidInputError, match=r"\[1, 2\] lines"):
        load_captions(tmp_path, "val")


def test_readings_are_of_the_ambiguous_part_alone(tmp_path):
    item = {
        "premise": "p", "hypothesis": "h", "premise_ambiguous": True, "hypothesis_ambiguous": False,
        "disambiguations": [
            {"premise": "p1", "hypothesis": "h"}, {"premise": "p", "hypothesis": "h"},
        ],
    }  # fmt: skip
    write(tmp_path / "text" / "ambient_full.jsonl.gz", json.dumps(item) + "\n")
    (found,) = load_ambient(tmp_path)
    assert (found.sentence, found.readings) == ("p", ("p1",))
    write(tmp_path / "text" / "ambient_full.jsonl.gz", "{}\n")
    with pytest.raises(InvalidInputError, match="not AmbiEnt"):
        load_ambient(tmp_path)


def test_votes_and_scores(tmp_path):
    row = {"example": {"premise": "p", "hypothesis": "h"}, "entropy": 0.5}
    write(tmp_path / "text" / "chaosNLI_snli.jsonl.gz", json.dumps(row))
    assert load_chaos_nli(tmp_path, "snli")[0].entropy == 0.5
    write(tmp_path / "text" / "stsb_dev.tsv.gz", "g\tf\ty\t1\t4.5\tone\ttwo\textra\n")
    assert load_stsb(tmp_path, "dev") == [("one", "two", 4.5)]
    write(tmp_path / "text" / "stsb_dev.tsv.gz", "g\tf\ty\t1\tmuch\tone\ttwo\n")
    with pytest.raises(InvalidInputError, match="line 1 is not STS-B"):
        load_stsb(tmp_path, "dev")
    write(tmp_path / "text" / "chaosNLI_snli.jsonl.gz", '{"entropy": 1}')
    with pytest.raises(InvalidInputError, match="not ChaosNLI"):
        load_chaos_nli(tmp_path, "snli")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "cannot be read"),
        (b"[1]\n", "line 1 is not a JSON object"),
        (b'{"a": 1}\n{', "line 2 is not JSON"),
        (b"x" * 1_000_001, "longer than"),
    ],
)
def test_hostile_lines_are_named(tmp_path, content, message):
    write(tmp_path / "text" / "x.gz", content)
    with pytest.raises(InvalidInputError, match=message):
        list(read_json_lines(tmp_path / "text" / "x.gz"))


def test_what_is_no_archive_is_named(tmp_path):
    (tmp_path / "x.gz").write_bytes(b"plain text")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_lines(tmp_path / "x.gz")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"many words" * 99)[:-9])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_lines(tmp_path / "x.gz")
    with pytest.raises(InvalidInputError, match="is missing"):
        read_lines(tmp_path / "y.gz")


def test_the_real_sets_have_their_known_sizes(shared_data):
    captions = load_captions(shared_data, "test_2016")
    assert (len(captions), len(captions[0])) == (1000, 5)
    lengths = [sum(len(c[k].split()) for c in captions) for k in range(5)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(load_chaos_nli(shared_data, "snli")) == 1514
    assert len(load_chaos_nli(shared_data, "mnli_m")) == 1599
    assert len(load_stsb(shared_data, "test")) == 1379
    ambiguous = load_ambient(shared_data)
    assert len(ambiguous) > 500
    assert all(a.sentence not in a.readings for a in ambiguous)

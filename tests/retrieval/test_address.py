"""Addresses and origins: what may be shown, and what must be refused."""

import math

import numpy as np
import pytest

from aureole.errors import AureoleError, InvalidInputError
from aureole.retrieval import CredibleIndex, Origin, shown_address

SECRET = "hunter2"


@pytest.mark.parametrize(
    "where",
    [
        "postgresql://ann:hunter2@127.0.0.1:1/db#t",
        "postgresql://ann:hunter2@127.0.0.1:1/db?hunter2#t",
        "postgresql://ann:hunter2@127.0.0.1:hunter2/db",
        "postgresql://ann:p@hunter2@127.0.0.1:1/db",
        "postgresql://ann:p/hunter2@127.0.0.1:1/db",
        "postgresql://ann:p?hunter2@127.0.0.1:1/db",
        "postgresql://ann:p#hunter2@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=ann&password=hunter2",
        "postgresql://ann:%zzhunter2@127.0.0.1:1/db",
        "postgresql+psycopg://ann:hunter2@127.0.0.1:1/db",
        "mysql://ann:hunter2@127.0.0.1/db",
    ],
)
def test_no_error_shows_a_password(where):
    if ":hunter2/db" not in where:  # there it is a port
        assert SECRET not in shown_address(where)
    with pytest.raises(AureoleError) as caught:
        CredibleIndex.open(where)
    if ":hunter2/db" not in where:
        assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_paths_are_shown_as_they_are():
    for where in ("a@b/gallery.lance", "./x#y.faiss", "faiss://", "s3://bucket/g.lance"):
        assert shown_address(where) == where


def test_another_model_is_refused_and_an_unknown_one_is_not():
    Origin(3.0).check_same("abc", "this head")
    Origin(3.0, "abc").check_same("abc", "this head")
    with pytest.raises(InvalidInputError, match="this head is not what made"):
        Origin(3.0, "abc").check_same("abd", "this head")


@pytest.mark.parametrize("kappa_pos", [None, 0, 64, 64.5, np.float64(2.5)])
def test_an_origin_is_read_as_it_was_saved(kappa_pos):
    origin = Origin(kappa_pos, "abc")
    found = Origin.from_json(origin.to_json())
    assert found == origin
    assert found.kappa_pos == kappa_pos
    assert found.kappa_pos is None or type(found.kappa_pos) is float


def test_an_origin_that_was_saved_with_a_whole_number_is_read():
    text = '{"format": "aureole-origin-1", "kappa_pos": 64, "weights": null}'
    assert Origin.from_json(text) == Origin(64.0)


@pytest.mark.parametrize("kappa_pos", [math.inf, math.nan, -1.0, "64", True])
def test_an_origin_that_could_not_be_read_is_not_made(kappa_pos):
    with pytest.raises((InvalidInputError, TypeError), match="kappa_pos"):
        Origin(kappa_pos)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '{"format": "aureole-origin-1"}', '{"format": "x", "kappa_pos": 1.0, "weights": null}',
     '{"format": "aureole-origin-1", "kappa_pos": "1", "weights": null}',
     '{"format": "aureole-origin-1", "kappa_pos": NaN, "weights": null}',
     '{"format": "aureole-origin-1", "kappa_pos": Infinity, "weights": null}',
     '{"format": "aureole-origin-1", "kappa_pos": true, "weights": null}',
     '{"format": "aureole-origin-1", "kappa_pos": 1.0, "weights": 3}'],
)  # fmt: skip
def test_a_damaged_origin_is_refused(text):
    with pytest.raises(InvalidInputError, match="no saved origin"):
        Origin.from_json(text)

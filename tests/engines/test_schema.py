"""Schemas and origins: what is saved with a gallery, and what is refused."""

import math

import numpy as np
import pytest

from aureole.engines import Origin
from aureole.engines._schema import Schema
from aureole.errors import InvalidInputError


def test_schemas_from_anywhere_are_checked():
    for values in (None, [], {"dim": 1, "columns": {}, "typical_kappa": 1}, {"dim": 3},
                   {"dim": 3, "columns": {"a; b": "text"}, "typical_kappa": 1},
                   {"dim": 3, "columns": {"a": "code"}, "typical_kappa": 1}):  # fmt: skip
        with pytest.raises(InvalidInputError, match="does not hold a gallery"):
            Schema.from_json(values, "here")


def test_another_model_is_refused_and_an_unknown_one_is_not():
    Origin(3.0).check_same("abc", "this head")
    Origin(3.0, "abc").check_same("abc", "this head")
    with pytest.raises(InvalidInputError, match="this head is not the model that produced"):
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
    with pytest.raises(InvalidInputError, match="not a saved origin"):
        Origin.from_json(text)

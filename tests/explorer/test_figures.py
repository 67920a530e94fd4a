"""The figure of caps: a search that was really made."""

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("faiss")
pytest.importorskip("matplotlib")

from aureole.explorer._figures import caps_figure


def counts(svg):
    return [int(n) for n in re.findall(r"°: (\d+) items", svg)]


def test_the_vague_query_gets_more_and_the_figure_is_the_same_each_time():
    svg = caps_figure()
    ElementTree.fromstring(svg)
    sure, vague = counts(svg)
    assert 0 < sure < vague < 400
    assert svg == caps_figure()
    assert counts(caps_figure(0.5)) < counts(svg)
    for text in ("a confident query", "a vague query", "in the set", "μ of the query"):
        assert text in svg

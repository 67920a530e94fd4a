"""The figures: drawn where their runs are, the same every time, and without traces."""

import sys
from xml.etree import ElementTree

import pytest

from aureole.errors import AureoleError
from aureole_paper import figures

ALL = {name: getattr(figures, name) for name in dir(figures) if name.endswith("_figure")}


@pytest.mark.parametrize("name", ALL)
def test_a_figure_is_clean_svg_and_the_same_every_time(groups, name):
    import matplotlib

    def state():
        # to read the backend is to choose one
        return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}

    before = state()
    svg = ALL[name](groups)
    assert svg == ALL[name](groups)
    assert state() == before
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "viewBox" in root.attrib
    assert "width" not in root.attrib  # the page decides
    for unwanted in ("<metadata", "<style", "<!DOCTYPE", "<script", "nan"):
        assert unwanted not in svg


@pytest.mark.parametrize("name", ALL)
def test_without_runs_there_is_no_figure(name):
    assert ALL[name]({}) is None


@pytest.mark.parametrize("name", ALL)
def test_runs_without_the_metrics_give_no_figure_or_a_sparse_one(run, name):
    names = ("ambiguous", "clear", "injective", "two-dim", "mc-samples-4", "encoder-dim-8")
    bare = {setting: [run(setting)] for setting in names}
    assert ALL[name](bare) is None or "<svg" in ALL[name](bare)


def test_ids_differ_between_figures(groups):
    ids = [
        {element.get("id") for element in ElementTree.fromstring(draw(groups)).iter()} - {None}
        for draw in ALL.values()
    ]
    assert sum(map(len, ids)) == len(set().union(*ids))


def test_an_input_that_is_nearest_to_two_angles_is_drawn_once(groups):
    svg = figures.posterior_figure(groups)
    assert svg is not None
    assert svg.count("opacity: 0.35") == 2 * 3  # four examples, of which two are one input


def test_without_matplotlib_the_error_says_what_to_install(groups, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AureoleError, match=r"pip install 'aureole\[reports\]'"):
        figures.scatter_figure(groups)

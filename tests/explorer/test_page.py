"""The page: well-formed, self-contained, and safe with any text in it."""

import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from aureole.errors import AureoleError
from aureole.explorer._page import Picture, Run, Section, Table, render
from aureole.plot import FAVICON
from aureole.records import Record

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"


def page(text="plain"):
    record = Record("r", {}, command=text, seed=4, commit=text)
    table = Table(text, text, (text, "ours"), ((text, "0.989 ± 0.001"),), ((text, 2),))
    section = Section(
        "part",
        text,
        text,
        (table,),
        (Picture("<svg viewBox='0 0 1 1'></svg>", text, text),),
        (Run(text, Path(text), record),),
    )
    return render(text, [section], about=text, results=[text], footer=[text])


class Outline(HTMLParser):
    """The open tags, ids, links and attributes of a page; fails where tags do not nest."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.attributes = [], [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values[k] for k in ("href", "src", "xlink:href") if k in values]
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_hostile_text_is_escaped_everywhere():
    html = page(HOSTILE)
    plain = Outline(page("x" * len(HOSTILE)))
    found = Outline(html)
    assert found.tags == plain.tags  # no text has become a tag
    assert found.attributes == plain.attributes
    assert "script" not in found.tags
    assert html.count("&lt;script&gt;") > 10


def test_the_page_has_what_a_reader_needs():
    html = page()
    found = Outline(html)
    assert html.startswith('<!doctype html>\n<html lang="en">')
    assert '<meta name="viewport" content="width=device-width' in html
    assert "<title>plain</title>" in html
    assert 'role="img" aria-label="plain"' in html
    assert "prefers-color-scheme: dark" in html
    assert "overflow-x: auto" in html
    assert found.links == [FAVICON, "#part"]
    assert "details" in found.tags
    assert "0.989 <small>± 0.001</small>" in html


def test_without_jinja_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(AureoleError, match=r"pip install 'aureole\[explore\]'"):
        page()

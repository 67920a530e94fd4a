"""Model cards: what they say, and that no text leaves its place."""

import pytest
from hypothesis import given, strategies as st

from aureole.errors import InvalidInputError
from aureole.models import Card
from aureole.models._card import model_card

yaml = pytest.importorskip("yaml")
markdown_it = pytest.importorskip("markdown_it")

PARSER = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
USAGE = ["import aureole as au", 'encoder = au.PosteriorEncoder.load("folder")']


def written(card):
    return model_card(card, format="aureole-posterior-encoder-1", dim=16, usage=USAGE)


def parts(text):
    """(Front matter as YAML, tokens of the rest)."""
    _, front, rest = text.split("---\n", 2)
    return yaml.safe_load(front), PARSER.parse(rest)


def shape(tokens):
    """What markdown sees, but for the words."""
    found = []
    for token in tokens:
        inline = [child.type for child in token.children or [] if child.type != "text"]
        found.append((token.type, token.tag, tuple(inline)))
    return found


def test_a_card_says_what_was_measured():
    card = Card("Birds", "CUB-200", 20.0, {0.95: 0.941, 0.5: 0.4876}, "apache-2.0", "See 3.2.")
    text = written(card)
    front, _ = parts(text)
    tags = ["uncertainty", "von-mises-fisher", "embeddings"]
    assert front == {"library_name": "aureole", "license": "apache-2.0", "tags": tags}
    for line in (
        "# Birds",
        "- kappa_pos: 20",
        "- dim: 16",
        r"- Data: CUB\-200",
        "| 0.95 | 0.941 |",
        'encoder = au.PosteriorEncoder.load("folder")',
    ):
        assert line in text.splitlines()
    assert text.index("| 0.5 | 0.488 |") < text.index("| 0.95 |")
    assert "kappa is relative to kappa_pos" in text
    assert "does not detect\n  out-of-distribution inputs" in text
    assert "aureole-posterior-encoder-1" in text


def test_an_empty_card_says_so():
    text = written(Card())
    assert text.count("not stated") == 3
    assert "Not measured." in text
    assert "Notes" not in text
    assert "license" not in parts(text)[0]


HOSTILE = [
    "x\n---\nlicense: mit\n---\n# Owned",
    "x\r\n\r\n# Owned",
    "x\u2028# Owned\x85---\x0b\x0c",
    '"]\ntags: [owned',
    "!!python/object/apply:os.system ['id']",
    "<script>alert(1)</script>",
    "[click](javascript:alert(1)) ![x](http://x/y.png)",
    "`code` ``` | a | b |",
    "\\`\\<b>\\",
    "&lt;b&gt; &#60;",
    "*bold* _it_ ~~gone~~ <http://x.y>",
    "1. one",
    "- item",
    "\u202egnp.exe\u200b\ufeff\x00\x1b[31m",
    "\ud800 lone",
    "    indented code",
    "| x | y |",
    "%YAML 1.2",
    "{{ jinja }} {% raw %}",
]


def check(text):
    plain = Card("Name", "Data", 20.0, {0.5: 0.5}, "mit", "Notes")
    hostile = Card(text, text, 20.0, {0.5: 0.5}, text, text)
    front, tokens = parts(written(hostile))
    expected, usual = parts(written(plain))
    assert set(front) <= set(expected)
    assert front["tags"] == expected["tags"]
    assert isinstance(front.get("license", ""), str)
    assert shape(tokens) == shape(usual)
    return front, tokens


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_texts(text):
    front, tokens = check(text)
    assert "\n" not in front["license"]
    title = next(t for t in tokens if t.type == "inline")
    words = "".join(child.content for child in title.children)
    assert words == front["license"]  # what is shown is the text, character by character


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_stays_a_text(text):
    check("x" + text)


def test_huggingface_reads_the_card():
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(written(Card(licence='apache-2.0"\nx: y')))
    assert card.data.to_dict()["library_name"] == "aureole"
    assert card.data.license == 'apache-2.0" x: y'


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kappa_pos": 0.0}, "kappa_pos"),
        ({"kappa_pos": float("nan")}, "kappa_pos"),
        ({"kappa_pos": float("inf")}, "kappa_pos"),
        ({"coverage": {1.5: 0.5}}, "coverage"),
        ({"coverage": {0.5: float("nan")}}, "coverage"),
        ({"name": "a" * 2001}, "2000"),
    ],
)
def test_what_is_no_measurement_is_refused(values, message):
    with pytest.raises(InvalidInputError, match=message):
        Card(**values)

"""Model cards: what they say."""

import pytest

from aureole.errors import InvalidInputError
from aureole.models import Card
from aureole.models._card import model_card

yaml = pytest.importorskip("yaml")
USAGE = ["import aureole as au", 'encoder = au.PosteriorEncoder.load("folder")']


def written(card):
    return model_card(card, format="aureole-posterior-encoder-1", dim=16, usage=USAGE)


def front_matter(text):
    return yaml.safe_load(text.split("---\n", 2)[1])


def test_a_card_says_what_was_measured():
    card = Card("Birds", "CUB-200", 20.0, {0.95: 0.941, 0.5: 0.4876}, "apache-2.0", "See 3.2.")
    text = written(card)
    front = front_matter(text)
    tags = ["uncertainty", "von-mises-fisher", "embeddings"]
    assert front == {"library_name": "aureole", "license": "apache-2.0", "tags": tags}
    for line in (
        "# Birds",
        "- kappa_pos: 20",
        "- dim: 16",
        "- Data: CUB-200",
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
    assert "license" not in front_matter(text)


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

"""``aureole inspect``: what it prints and writes, and what it refuses."""

import json

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.errors import AureoleError
from aureole.explorer import inspect_gallery
from aureole.explorer._questions import load_questions, questions_path
from tests.cli.conftest import run


def gallery(where):
    rng = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(3, 6, generator=rng), dim=1)
    label = torch.arange(90) % 3
    mu = centres[label] + 0.3 * torch.randn(90, 6, generator=rng)
    mu = torch.nn.functional.normalize(mu, dim=1)
    kappa = 5 + 60 * torch.rand(90, generator=rng)
    names = [f"class {code}" for code in label.tolist()]
    names[10] = "class 2"
    ids = [f"item-{i:02d}" for i in range(90)]
    index = CredibleIndex.create(where, VonMisesFisher(mu, kappa), ids, {"label": names})
    index.origin = Origin(kappa_pos=20.0)
    index.close()
    return str(where)


def printed(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_inspect_prints_what_python_finds(tmp_path):
    where = gallery(tmp_path / "gallery.faiss")
    facts = json.loads(printed("inspect", where, "--json", "--limit", "5"))
    with CredibleIndex.open(where) as index:
        expected = inspect_gallery(index, label_column="label")
    counts = {entry["name"]: entry["count"] for entry in expected.summary()}
    for name in ("labels", "ambiguous", "outliers"):
        _, first = expected.answer(name, 0, 5)
        assert facts["questions"][name]["count"] == counts[name]
        assert facts["questions"][name]["first"] == json.loads(json.dumps(first))
    assert facts["questions"]["labels"]["first"][0]["id"] == "item-10"
    assert facts["confusions"] == json.loads(json.dumps(expected.confusions(5)))
    saved = load_questions(questions_path(where))
    assert saved.answer("labels", 0, 90) == expected.answer("labels", 0, 90)
    text = printed("inspect", where, "--out", str(tmp_path / "answers"))
    assert "suspicious labels" in text
    assert "item-10" in text


def test_ids_and_labels_are_text_and_not_markup(tmp_path):
    """Brackets are printed as they are, and no escape reaches the terminal."""
    ids = [f"{i:02d}[/x]" for i in range(30)]
    labels = ["[red]a", "[/b]", "c\x1b[2J"]
    rng = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(30, 3, generator=rng), dim=1)
    payload = {"label": [labels[i % 3] for i in range(30)]}
    where = str(tmp_path / "gallery.faiss")
    index = CredibleIndex.create(where, VonMisesFisher(mu, 5.0), ids, payload)
    index.origin = Origin(kappa_pos=20.0)
    index.close()
    text = printed("inspect", where)
    assert "[/x]" in text
    assert "[red]a" in text
    assert "[/b]" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "{gallery}", "--label-column", "colour"), "colour"),
        (("inspect", "{gallery}", "--limit", "0"), "limit"),
    ],
)
def test_refusals_are_one_line(tmp_path, arguments, said):
    where = gallery(tmp_path / "gallery.faiss")
    done = run(*(each.format(gallery=where) for each in arguments))
    assert done.exit_code in (1, 2)
    if isinstance(done.exception, AureoleError):
        assert said in str(done.exception)
        assert "\n" not in str(done.exception)
    else:
        assert said in " ".join(done.output.replace("│", " ").split())

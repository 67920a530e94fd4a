"""``aureole evaluate``: its figures, its page, and what strangers write into tables."""

import json

import numpy as np
import pytest
import torch

from aureole.data import write_columns, write_picture
from aureole.errors import InvalidInputError
from aureole.training import FrozenHead
from tests.cli.conftest import columns, run
from tests.explorer.test_page import HOSTILE, Outline


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Other views of other things, with hostile texts and paths of pictures, of which some are broken."""
    folder = tmp_path_factory.mktemp("test")
    given = columns(things=40, seed=1)
    rng = torch.Generator().manual_seed(0)
    paths = []
    for i in range(160):
        paths.append(f"pictures/{i}.png")
        picture = torch.randint(0, 255, (3, 40, 60), generator=rng, dtype=torch.uint8)
        write_picture(picture, folder / paths[-1])
    for i in range(0, 160, 2):
        (folder / paths[i]).write_bytes(b"%!PS not a picture")
    given["t"] = np.array([f"{HOSTILE} {i} " + "long " * 10_000 for i in range(160)], dtype=object)
    given["p"] = np.array(paths, dtype=object)
    return write_columns(folder / "test.parquet", given)


def test_the_figures_are_those_of_python(held, fitted):
    command = ("evaluate", held, "--head", fitted[0], "--vector-column", "v")
    done = run(*command, "--group-column", "g", "--json")
    assert done.exit_code == 0, done.output
    said, given = json.loads(done.stdout), columns(things=40, seed=1)
    head = FrozenHead.load(fitted[0])
    groups = np.unique(given["g"], return_inverse=True)[1]
    assert said["information"] == pytest.approx(head.score(given["v"], groups), rel=1e-4)
    wanted = head.coverage(given["v"], groups)
    found = {entry["mass"]: entry["measured"] for entry in said["coverage"]}
    assert found == pytest.approx(wanted, abs=1e-3)
    assert (said["rows"], said["groups"], said["asked"]) == (160, 40, 160)
    assert said["rejection"]["recall_at_1"][0] == pytest.approx(said["recall_at_1"])
    assert sum(said["kappa"]["histogram"]["counts"]) == 160
    plain = run(*command, "--group-column", "g")
    for words in ("160 rows in 40 groups", "rejected", "best order", "nominal"):
        assert words in plain.stdout
    assert max(map(len, plain.stdout.splitlines())) <= 80


def test_hostile_texts_are_text_on_the_page(held, fitted, tmp_path):
    page = tmp_path / "deep" / "report.html"
    done = run(
        "evaluate", held, "--head", fitted[0], "--vector-column", "v", "--group-column", "g",
        "--text-column", "t", "--report", page, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"] == str(page)
    html = page.read_text()
    tags = Outline(html).tags
    assert not {"script", "img"} & set(tags)
    assert html.count("&lt;script&gt;") == 24
    assert html.count("long long") < 24 * 300  # texts are cut
    assert len(html) < 300_000


def test_pictures_are_shown_and_broken_ones_named(held, fitted, tmp_path):
    page = tmp_path / "report.html"
    done = run(
        "evaluate", held, "--head", fitted[0], "--vector-column", "v", "--group-column", "g",
        "--image-column", "p", "--report", page,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    html = page.read_text()
    outline = Outline(html)
    shown, broken = outline.tags.count("img"), html.count("cannot be read as a picture")
    assert shown + broken == 24
    assert shown > 0
    assert broken > 0
    assert all(link.startswith(("#", "data:image/")) for link in outline.links)


def test_wrong_use_and_wrong_tables(held, fitted, tmp_path):
    command = ("evaluate", held, "--head", fitted[0], "--vector-column", "v")
    grouped = (*command, "--group-column", "g")
    assert run(*grouped, "--text-column", "t").exit_code == 2
    both = ("--text-column", "t", "--image-column", "p", "--report", tmp_path / "r.html")
    assert run(*grouped, *both).exit_code == 2
    alone = {k: v[:3] for k, v in columns().items() if k != "g"} | {"g": np.arange(3)}
    lonely = write_columns(tmp_path / "lonely.parquet", alone)
    for match, wrong in {
        "name a column": command,
        "no column 'text'": (*grouped, "--text-column", "text", "--report", tmp_path / "r.html"),
        "no two of the 3 rows": (*command[:1], lonely, *command[2:], "--group-column", "g"),
    }.items():
        done = run(*wrong)
        assert done.exit_code == 1
        with pytest.raises(InvalidInputError, match=match):
            raise done.exception
    assert not (tmp_path / "r.html").exists()

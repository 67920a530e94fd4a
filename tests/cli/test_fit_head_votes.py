"""``aureole fit-head --votes``: long tables, columns and arrays of counts, what is said and what is refused."""

import json

import numpy as np
import pytest
import torch

from aureole.data import write_columns
from aureole.errors import AureoleError
from aureole.training import FrozenHead
from tests.cli.conftest import run

QUICK = ("--dim", "4", "--steps", "3", "--items", "64")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table of vectors, and the same votes as a long table, as columns and as an array."""
    folder, rng = tmp_path_factory.mktemp("votes"), np.random.default_rng(0)
    truth = rng.dirichlet(np.full(3, 0.3), 200)
    counts = np.stack([rng.multinomial(4, row) for row in truth])
    counts[:5] = [1, 0, 0]
    vectors = np.concatenate([truth, rng.normal(size=(200, 5))], 1).astype(np.float32)
    ids = np.array([f"photo {i}" for i in range(200)], object)
    names = ("cat", "dog", "fox")
    columns = {f"votes_{name}": counts[:, k] for k, name in enumerate(names)}
    write_columns(folder / "vectors.parquet", {"v": vectors, "id": ids, **columns})
    np.save(folder / "counts.npy", counts)
    rows = [(i, k) for i in range(200) for k in range(3) for _ in range(counts[i, k])]
    order = rng.permutation(len(rows))
    item, label = (np.array(rows)[order, k] for k in (0, 1))
    people = np.array([f"person {n}" for n in range(len(rows))], object)
    long = {"item": ids[item], "annotator": people, "label": np.array(names, object)[label]}
    write_columns(folder / "votes.csv", long)
    write_columns(folder / "numbers.csv", {"row": item, "says": label})
    return folder


def fit(files, *options):
    return run("fit-head", files / "vectors.parquet", "--vector-column", "v", *options, *QUICK)


def test_all_kinds_of_votes_give_the_same_head(files, tmp_path):
    kinds = {
        "long": ("--votes", files / "votes.csv", "--id-column", "id"),
        "numbers": (
            *("--votes", files / "numbers.csv", "--item-column", "row"),
            *("--label-column", "says"),
        ),
        "names": ("--votes", "votes_cat,votes_dog,votes_fox"),
        "pattern": ("--votes", "votes_*"),
        "array": ("--votes", files / "counts.npy"),
    }
    expected = None
    for kind, options in kinds.items():
        done = fit(files, *options, "--out", tmp_path / kind, "--json")
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        votes = said["votes"]
        assert (votes["items"], votes["votes"], votes["single_votes"]) == (200, 785, 5)
        assert 0.4 < votes["agreement"] < 0.95
        information = said["information"]
        expected = information if expected is None else expected
        assert information == pytest.approx(expected)
    head = FrozenHead.load(tmp_path / "long")
    assert torch.isfinite(head.predict(np.ones((2, 8), np.float32)).kappa).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kinds)


def test_what_is_said_in_plain_and_scores(files, tmp_path):
    long = ("--votes", files / "votes.csv", "--id-column", "id")
    done = fit(files, *long, "--out", tmp_path / "head", "--scores", tmp_path / "scores.csv")
    assert done.exit_code == 0, done.output
    assert "785 votes on 200 items, 5 of them with one vote;" in done.stdout
    assert "% of the pairs of annotators agree" in done.stdout
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 201


def test_wrong_options_are_exit_code_2(files, tmp_path):
    wrong = [
        ("--votes", "votes_*", "--pairs", files / "votes.csv"),
        ("--votes", "votes_*", "--group-column", "id"),
        ("--votes", "votes_*", "--label-column", "says"),
        ("--votes", ","),
        ("--votes", "votes_*", "--report", tmp_path / "page.html"),
    ]
    for options in wrong:
        assert fit(files, *options, "--out", tmp_path / "head").exit_code == 2, options
    assert not list(tmp_path.iterdir())


def test_wrong_votes_are_one_line_and_leave_nothing(files, tmp_path):
    out = tmp_path / "out"
    bad = tmp_path / "bad"
    bad.mkdir()
    np.save(bad / "short.npy", np.ones((199, 3), int))
    np.save(bad / "shares.npy", np.full((200, 3), 0.3))
    (bad / "twice.csv").write_text("item,annotator,label\n0,a,x\n0,a,y\n")
    (bad / "far.csv").write_text("item,annotator,label\n0,a,x\n200,a,y\n")
    (bad / "gap.csv").write_text("item,annotator,label\n0,a,x\n1,a,\n")
    (bad / "few.csv").write_text("item,label\n0,x\n1,y\n2,x\n")
    (bad / "equal.csv").write_text("item,label\n" + "".join(f"{i},x\n" for i in range(9)))
    wrong = {
        "cat,dog": "no column 'cat'",
        "cat_*": "matches 'cat_",
        bad / "none.csv": "does not exist",
        bad / "short.npy": "200 vectors, but votes on 199 items",
        bad / "shares.npy": "whole numbers of votes",
        bad / "twice.csv": "votes twice on item 0",
        bad / "far.csv": "votes on 201 items",
        bad / "gap.csv": "row 1 of .* has no label",
        bad / "few.csv": "3 items cannot be split",
        bad / "equal.csv": "all votes are for 'x'",
    }
    for votes, message in wrong.items():
        done = fit(files, "--votes", votes, "--out", out)
        assert isinstance(done.exception, AureoleError), (votes, done.output)
        with pytest.raises(AureoleError, match=message) as caught:
            raise done.exception
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_annotators_can_be_ignored(files, tmp_path):
    table = tmp_path / "votes.csv"
    rows = [f"{i},ann,{'xyz'[(i + k) % 2]}" for i in range(40) for k in (0, 0, 1)]
    table.write_text("item,annotator,label\n" + "\n".join(rows) + "\n")
    done = fit(files, "--votes", table, "--annotator-column", "", "--out", tmp_path / "h", "--json")
    assert done.exit_code == 0, done.output
    votes = json.loads(done.stdout)["votes"]
    assert (votes["items"], votes["votes"]) == (40, 120)

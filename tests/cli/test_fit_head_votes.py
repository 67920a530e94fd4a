"""``aureole fit-head --votes``: long tables, columns and arrays of counts, what is said and what is refused."""

import json

import numpy as np
import pytest
import torch

from aureole.cli._fit_head import PositiveOptions
from aureole.data import Votes, write_columns
from aureole.errors import AureoleError
from aureole.training import FrozenHead
from tests.cli.conftest import run

QUICK = ("--dim", "4", "--steps", "20", "--items", "64")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table of vectors, and the same votes as a long table, as columns and as an array."""
    folder, rng = tmp_path_factory.mktemp("votes"), np.random.default_rng(0)
    truth = rng.dirichlet(np.full(3, 0.3), 200)
    counts = np.stack([rng.multinomial(4, row) for row in truth])
    counts[:5] = [1, 0, 0]
    truth = counts / counts.sum(1, keepdims=True)
    vectors = np.concatenate([truth, 0.3 * rng.normal(size=(200, 5))], 1).astype(np.float32)
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
    write_columns(folder / "numbers.csv", {"item": item, "label": label})
    return folder


def fit(files, *options):
    return run("fit-head", files / "vectors.parquet", "--vector-column", "v", *options, *QUICK)


def test_all_kinds_of_votes_are_the_same(files):
    table = files / "vectors.parquet"
    expected = np.load(files / "counts.npy").tolist()
    for votes, id_column in (
        (str(files / "votes.csv"), "id"),
        (str(files / "numbers.csv"), None),
        ("votes_cat, votes_dog,votes_fox", None),
        ("votes_*", None),
        (str(files / "counts.npy"), None),
    ):
        options = PositiveOptions(votes=votes, id_column=id_column)
        options.check(grouped=False)
        assert options.read_votes(table).counts.tolist() == expected
    assert PositiveOptions().read_votes(table) is None


def test_a_head_is_fitted_and_the_votes_are_reported(files, tmp_path):
    long = ("--votes", files / "votes.csv", "--id-column", "id")
    done = fit(files, *long, "--out", tmp_path / "head", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)["votes"]
    assert (said["items"], said["votes"], said["classes"]) == (200, 785, 3)
    assert 0.4 < said["agreement"] < 0.95
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head"]
    head = FrozenHead.load(tmp_path / "head")
    assert torch.isfinite(head.predict(np.ones((2, 8), np.float32)).kappa).all()


def test_wrong_options_are_exit_code_2(files, tmp_path):
    wrong = [
        ("--votes", "votes_*", "--pairs", files / "votes.csv"),
        ("--votes", "votes_*", "--group-column", "id"),
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
        "cat_*": r"no column 'cat_\*'",
        bad / "none.csv": "does not exist",
        bad / "short.npy": "200 vectors, but votes on 199 items",
        bad / "shares.npy": "whole numbers of votes",
        bad / "twice.csv": "votes twice on item 0",
        bad / "far.csv": "votes on 201 items",
        bad / "gap.csv": r"labels\[1\] is missing",
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


def test_an_annotator_votes_once_on_an_item(tmp_path):
    table = tmp_path / "votes.csv"
    table.write_text("item,annotator,label\n0,ann,x\n0,ann,y\n2,bob,x\n")
    with pytest.raises(AureoleError, match="'ann' votes twice on item 0"):
        PositiveOptions(votes=str(table)).read_votes(tmp_path / "none.npy")
    table.write_text("item,label\n0,x\n0,y\n2,x\n")
    votes = PositiveOptions(votes=str(table)).read_votes(tmp_path / "none.npy")
    assert votes.totals.tolist() == [2, 0, 1]


def test_row_numbers_may_end_before_the_last_vector():
    votes, rows = Votes.of([[1, 0], [0, 2]]), PositiveOptions(votes="votes.csv")
    assert rows.fit_votes(votes, 4).totals.tolist() == [1, 2, 0, 0]
    for count, options in ((4, PositiveOptions(votes="votes.csv", id_column="id")), (1, rows)):
        with pytest.raises(AureoleError, match=f"there are {count} vectors, but votes on 2 items"):
            options.fit_votes(votes, count)

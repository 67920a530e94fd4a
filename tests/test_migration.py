"""docs/migration.md against the API of 0.1.0: what it says still works does, and nothing that changed is missing.

``samples/v0_1/api.json`` has the names of the packages and of the modules that the reference or the pages of 0.1.0
named, with their parameters ("p" by position, "k" by keyword, "*" for ``**options``), and the options of commands.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
import importlib
import inspect
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer

import aureole as au
from aureole._deprecated import MOVED, PAPER
from aureole.cli._app import app
from aureole.data import PairBatch, write_columns
from aureole.training import Assessment, FitOptions, Phase

HERE = Path(__file__).parent
API = json.loads((HERE / "samples" / "v0_1" / "api.json").read_text())
PAGE = (HERE.parent / "docs" / "migration.md").read_text()
CODE = re.compile(r"`([^`]+)`")


def rows(heading):
    """The cells of the rows of the table below a heading."""
    below = re.split(r"^#+ ", PAGE.split(f" {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in below.splitlines() if line.startswith("| ") and "`" in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("| "))] for line in lines]


def calls(heading):
    """(Owner, parameter) of the code in the first cells; an attribute or a method is its owner with None."""
    found = set()
    for first, *_ in rows(heading):
        for code in CODE.findall(first):
            owner, bracket, inside = code.partition("(")
            names = re.findall(r"\w+", inside) if bracket else []
            found |= {(owner, name) for name in names} or {(owner, None)}
    return found


WORKING = calls("Calls")
REMOVED = {
    (CODE.findall(first)[0], name)
    for first, *_ in rows("Names")
    for name in CODE.findall(first)[1:]
}
NAMES = [(m, n) for m, names in API["modules"].items() for n in names]


def find(module, name):
    """The object that a name of 0.1.0 gives today; None if it was removed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return getattr(importlib.import_module(module), name)
        except (AttributeError, ModuleNotFoundError):
            return None


def test_the_table_of_modules_is_that_of_the_code():
    table = {
        old: CODE.findall(new)[0] for first, new in rows("Modules") for old in CODE.findall(first)
    }
    assert table == MOVED


def test_a_name_works_or_is_listed_as_removed():
    assert {(module, name) for module, name in NAMES if find(module, name) is None} == REMOVED


def test_a_moved_name_warns_with_its_new_place():
    for module, name in NAMES:
        if module not in MOVED:
            continue
        old, new = importlib.import_module(module), MOVED[module]
        if (module, name) in REMOVED:
            with pytest.raises(AttributeError, match=r"docs/migration\.md"):
                getattr(old, name)
            continue
        expected = f"{module}.{name} is now {new}.{name}; the old name will be removed in 0.3"
        with pytest.warns(DeprecationWarning, match=re.escape(expected)):
            assert getattr(old, name) is getattr(importlib.import_module(new), name)


def test_warnings_point_to_the_caller():
    """In a process of its own, since the type checks of the tests add frames."""
    program = (
        "from aureole.training.fit import fit\nimport aureole as au\nau.HedgedInstance(1.0)\n"
        "au.InfoNCE(20.0)\nau.CredibleIndex.create('faiss://', au.VonMisesFisher([[1.0, 0.0]], [1.0]), ['a'])"
        ".search(au.VonMisesFisher([1.0, 0.0], 1.0), kind='credible')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", program],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = re.findall(
        r"^(\S+:\d+): DeprecationWarning: .*(?:0\.3|SearchOptions)", done.stderr, re.MULTILINE
    )
    assert lines == [f"<string>:{line}" for line in (1, 3, 4, 5)], done.stderr


def test_a_module_of_0_1_does_not_hide_a_function_of_its_name():
    importlib.import_module("aureole.training.fit")
    importlib.import_module("aureole.evaluation.recovery")
    assert inspect.isfunction(au.training.fit)
    assert inspect.isfunction(au.evaluation.recovery)


def test_a_module_of_the_paper_names_its_distribution():
    for module, new in PAPER.items():
        with pytest.raises(ModuleNotFoundError, match=f"{new}, of the distribution aureole-paper"):
            importlib.import_module(module)


def parameters(thing):
    """{Name: "p", "k" or "*"} of a callable."""
    kinds = {"POSITIONAL_ONLY": "p", "POSITIONAL_OR_KEYWORD": "p", "KEYWORD_ONLY": "k"}
    return {
        p.name: kinds.get(p.kind.name, "*") for p in inspect.signature(thing).parameters.values()
    }


def changes(old, new):
    """Parameters of 0.1.0 that no longer exist, or that are no longer positional."""
    open_ended = "*" in new.values()
    for name, kind in old.items():
        if kind == "*":
            if not open_ended:
                yield name
        elif name not in new or (kind == "p" and new[name] != "p"):
            yield name


def changed():
    """(Owner, parameter) of all that differs from 0.1.0; None for a member that is gone."""
    found = set()
    for module, name in NAMES:
        new, old = find(module, name), API["modules"][module][name]
        if new is None or not old.get("parameters"):
            continue
        found |= {(name, each) for each in changes(old["parameters"], parameters(new))}
        for member, given in old.get("members", {}).items():
            if not hasattr(new, member) and member not in inspect.get_annotations(new):
                known = {n for c in new.__mro__ for n in inspect.get_annotations(c)}
                found |= set() if member in known else {(f"{name}.{member}", None)}
            elif given:
                method = inspect.getattr_static(new, member)
                method = getattr(method, "__func__", method)
                found |= {(f"{name}.{member}", each) for each in changes(given, parameters(method))}
    return found


def test_every_changed_parameter_is_on_the_page():
    listed = WORKING | calls("Parameters and attributes")
    assert changed() - listed == set()


def test_commands_and_options_of_0_1_exist():
    def options(command):
        return {name for p in command.params for name in (*p.opts, *p.secondary_opts)}

    pytest.importorskip("aureole_paper")
    top = typer.main.get_command(app)
    for path, old in API["commands"].items():
        command = top
        for verb in path.split()[1:]:
            command = command.get_command(None, verb)
            assert command is not None, path
        assert set(old) <= options(command), path


def process():
    return au.data.ControlledProcess(au.data.draw_generator(3, (16.0, 32.0), seed=4))


def bimodal():
    return au.data.BimodalProcess.draw(3, (8.0, 32.0), seed=4)


def old_fit(**old):
    """Train for a step with a keyword of 0.1.0."""
    x = torch.randn(4, 3)
    encoder = torch.nn.Sequential(torch.nn.Linear(3, 3), au.KappaFromNorm(3, 3))
    batch = PairBatch(x, torch.tensor([[0, 1], [2, 3]]), 2.0)
    phases = [Phase("joint", 1, 1e-3)]
    return au.training.fit(
        encoder, au.ClosedFormInfoNCE(8.0), lambda *_: batch, phases=phases, **old
    )


def old_embed(folder, **old):
    """A call of 0.1.0; the source does not exist, so that nothing is computed."""
    with pytest.raises(au.errors.InvalidInputError, match=r"none\.parquet"):
        au.scale.embed(folder / "none.parquet", out=folder / "e.lance", **old)


def pairs_file(folder):
    write_columns(folder / "pairs.csv", {"a": np.array([0, 1]), "b": np.array([1, 0])})
    return folder / "pairs.csv"


MU, KAPPA = torch.eye(3), torch.ones(3)
Q = au.VonMisesFisher(MU, KAPPA)
HEAD = "minilm-captions"
FAMILIES = (au.data.VMF(), au.data.Dirac(), au.data.Gaussian(), au.data.Laplace())
# how a caller of 0.1.0 wrote it: (what it concerns, the call, what the warning says)
CASES = [
    ("Assessment.figures", lambda _: Assessment.figures(SimpleNamespace(to_dict=dict)), "to_dict"),
    ("BimodalProcess.batch", lambda _: bimodal().batch(8, 4, None), "generator="),
    ("ControlledProcess.batch", lambda _: process().batch(8, 4, None), "generator="),
    ("ControlledProcess.intensity", lambda _: process().intensity(*[torch.zeros(2, 3)] * 2, None), "generator="),
    ("ControlledProcess.latents", lambda _: process().latents(torch.zeros(2, 3), 1, None), "generator="),
    ("ContrastiveLoss.check_kappa_pos", lambda _: au.MCInfoNCE(8.0).check_kappa_pos(), "check_parameters"),
    ("disjoint_pairs", lambda _: au.data.disjoint_pairs(torch.ones(4, 4), 1, None), "generator="),
    ("poisson_pairs", lambda _: au.data.poisson_pairs(torch.ones(4, 4), 1, None), "generator="),
    ("embed", lambda f: old_embed(f, encoder=HEAD, batch=8, decoders=2), r"EmbedOptions\(batch=8, decoders=2\)"),
    ("embed", lambda f: old_embed(f, model=HEAD, modality="vector"), r"SourceSpec\(source, modality='vector'\)"),
    ("embed", lambda f: old_embed(f, model=HEAD, normalized=True), r"ModelSpec\(model, normalized=True\)"),
    ("embed", lambda f: old_embed(f, encoder=HEAD), r"model=\.\.\. instead of encoder"),
    ("load_embedder", lambda _: au.scale.load_embedder(folder=HEAD), "encoder="),
    ("tell_error", lambda _: au.errors.tell_error(ValueError("a")), "error_to_dict"),
    ("told_error", lambda _: au.errors.told_error({"error": "a", "kind": "b"}), "error_from_dict"),
    ("fit", lambda _: old_fit(seed=3, clip=2.0), r"options=FitOptions\(seed=3, clip=2\.0\)"),
    ("fit", lambda _: old_fit(average=0.5, options=FitOptions(seed=3)), r"options=FitOptions\(average=0\.5\)"),
    ("HedgedInstance", lambda _: au.HedgedInstance(1.0, 0.0, 8), "HedgedInstance: write a="),
    ("MixtureHead", lambda _: au.MixtureHead(4, 3, 2), "n_components="),
    ("rejection_curve", lambda _: au.evaluation.rejection_curve(KAPPA, KAPPA > 0, 5), "points="),
    ("InfoNCE", lambda _: au.InfoNCE(20.0), r"temperature=0\.05"),
    ("ELK", lambda _: au.ELK(20.0), r"temperature=0\.05"),
    ("InfoNCE", lambda _: au.InfoNCE(temperature=0.05, learn_kappa_pos=True), "learn_temperature="),
    ("ELK", lambda _: au.ELK(temperature=0.05, learn_kappa_pos=True), "learn_temperature="),
    ("read_pairs", lambda f: au.data.read_pairs(pairs_file(f), "a", "b"), r"columns=\('a', 'b'\)"),
    ("read_pairs", lambda f: au.data.read_pairs(pairs_file(f), left="a", right="b"), r"columns=\('a', 'b'\)"),
    ("recovery", lambda _: au.evaluation.recovery(found=Q, mu=MU, kappa=KAPPA), "posterior="),
    ("set_coverage", lambda _: au.evaluation.set_coverage(MU > 0, chance=MU), "probability="),
    *((f"{type(f).__name__}.sample", lambda _, f=f: f.sample(MU, KAPPA, 2, None), "n=") for f in FAMILIES),
    *((f"{type(f).__name__}.coefficients", lambda _, f=f: f.coefficients(KAPPA, 3, 2), "count=") for f in FAMILIES),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::aureole.errors.AureoleWarning")
def test_an_old_call_works_and_says_how_to_write_it(tmp_path):
    for owner, call, now in CASES:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DeprecationWarning)
            call(tmp_path)
        messages = [str(w.message) for w in said if issubclass(w.category, DeprecationWarning)]
        assert any(re.search(now, one) and "0.3" in one for one in messages), (owner, messages)


def test_every_call_of_the_page_has_a_case():
    elsewhere = {
        "CredibleIndex.search",
        "CredibleIndex.check_recall",
    }  # tests/retrieval/test_index.py
    assert {owner for owner, _ in WORKING} - elsewhere == {owner for owner, *_ in CASES}


def test_old_and_new_calls_give_the_same():
    with pytest.warns(DeprecationWarning, match="points="):
        curve = au.evaluation.rejection_curve(torch.arange(5.0), torch.arange(5) > 2, 4)
    torch.testing.assert_close(
        curve, au.evaluation.rejection_curve(torch.arange(5.0), torch.arange(5) > 2, points=4)
    )
    with pytest.warns(DeprecationWarning, match="n_samples="):
        old = au.HedgedInstance(2.0, 1.0, 8)
    assert (old.a, old.b, old.n_samples) == (2.0, 1.0, 8)
    with pytest.raises(TypeError):
        au.HedgedInstance(2.0, 1.0, 8, 9)

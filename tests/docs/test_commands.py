"""Commands in pages: they exist, with their options, experiments and settings, and make the seeds that a row quotes."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import aureole
from aureole.cli._app import app
from tests.packaging.readme import blocks

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
COMMANDS = [
    (page.relative_to(REPOSITORY).as_posix(), command)
    for page in PAGES
    if "_build" not in page.parts
    for block in blocks(page.read_text())
    for command in block.commands
    if re.search(r"(^|\s)aureole\s", command)
]


def test_pages_have_commands():
    assert len(COMMANDS) > 30


# commands in running text and in tables, which may leave out arguments
INLINE = [
    (page.relative_to(REPOSITORY).as_posix(), " ".join(found[1].split()))
    for page in PAGES
    if "_build" not in page.parts
    for found in re.finditer(
        r"(?<!`)`(aureole [^`]+)`", re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    )
]


def resolve(given):
    """(The click command, the path of its verbs, the words after them); no command for an option of the program."""
    below, verbs, given = typer.main.get_command(app), [], list(given)
    while hasattr(below, "commands") and given:
        if given[0].startswith("-"):
            return None, verbs, given
        found = below.get_command(
            None, given[0]
        )  # a command of another distribution is loaded here
        assert found is not None, f"unknown command {given[0]!r}"
        verbs.append(given.pop(0))
        below = found
    return below, verbs, given


def words_of(command):
    """The words of a command line after ``aureole``, without pipes and comments."""
    line = re.split(r" [|>] ", command.replace("\\\n", " "))[0].rstrip(" &")
    words = shlex.split(line, comments=True)
    return words[words.index("aureole") + 1 :]


def jobs_of(params):
    """The (setting, seed) pairs that parsed parameters of ``aureole reproduce`` would run."""
    reproduce = pytest.importorskip("aureole_paper.reproduce")
    groups = {
        kind: kind(**{name: params[name] for name in kind.__dataclass_fields__})
        for kind in (reproduce.SettingOptions, reproduce.SeedOptions)
    }
    wanted = groups[reproduce.SettingOptions].given()
    experiments = reproduce._experiments(params["names"], wanted, params["preset"])
    settings = {s.name for e in experiments for s in e.of_preset(params["preset"])}
    assert set(wanted.get("name", ())) <= settings, "--only names a setting that does not exist"
    jobs = reproduce._jobs(experiments, params["preset"], groups[reproduce.SeedOptions])
    return {(setting.name, seed) for setting, seed in jobs}


def check(command, *, partial):
    """Parse a command as the program does; a ``partial`` one may lack arguments and the value of its last option."""
    below, verbs, given = resolve(words_of(command))
    if below is None or "--help" in given:
        return
    if hasattr(below, "commands"):
        assert partial, f"{command!r} has no verb"
        return
    known = {name for p in below.params for name in (*p.opts, *p.secondary_opts)}
    for word in given:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{command!r}: unknown option {word}"
    try:
        params = below.make_context("aureole", list(given)).params
    except Exception as error:  # typer has its own copy of click's errors, which it does not export
        lacking = type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError")
        valueless = type(error).__name__ == "BadOptionUsage" and given[-1].startswith("--")
        if partial and (lacking or valueless):
            return
        raise
    if verbs == ["reproduce"]:
        assert jobs_of(params)


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_in_a_page_is_one_that_there_is(page, command):
    check(command, partial=False)


def test_pages_name_commands_in_running_text():
    assert len(INLINE) > 50


@pytest.mark.parametrize(("page", "command"), sorted(set(INLINE)))
def test_a_command_in_running_text_or_a_table_exists(page, command):
    check(command, partial=True)


@pytest.mark.parametrize(
    "command",
    [
        "aureole reproduce gaussian",
        "aureole reproduce cifar10h --only clossed-form",
        "aureole reproduce cifar10h --only softmax --only none",
        "aureole reproduce ambiguous --seed 6",
        "aureole reproduce ambiguous --seeds six",
        "aureole reproduce clear --preset slow",
        "aureole rebuild",
        "aureole search --calibration",
    ],
)
def test_a_command_that_does_not_exist_is_found(command):
    with pytest.raises((AssertionError, *typer.BadParameter.__mro__[:2])):
        check(command, partial=True)


def test_every_command_of_the_pages_prints_its_help():
    """``--help`` of each verb that a page names, once."""
    lines = (words_of(command) for _, command in (*COMMANDS, *INLINE))
    verbs = {tuple(resolve(line)[1]) for line in lines}
    assert len(verbs) > 10
    for path in sorted(verbs):
        shown = CliRunner().invoke(app, [*path, "--help"])
        assert shown.exit_code == 0, (path, shown.output)
        assert "Usage:" in shown.output, path


COUNTS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def result_rows():
    """(Experiment, command, folder of records) of each row of the page of results that names records."""
    rows = []
    for line in (REPOSITORY / "docs" / "results.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 6:
            continue
        link = re.fullmatch(r"`(paper/results/[^`]+)`", cells[5])
        if link:
            rows.append((cells[0], cells[4].strip("`"), link[1]))
    return rows


def test_the_page_has_rows_of_results():
    assert len(result_rows()) >= 8


@pytest.mark.parametrize(("experiment", "command", "folder"), result_rows())
def test_a_row_has_as_many_seeds_as_it_says_and_as_its_command_makes(experiment, command, folder):
    stated = re.search(r"\b(\w+) (?:seed|fold)s?\b", experiment)
    expected = COUNTS.index(stated[1]) + 1 if stated else 5  # what the text above the table says
    page = (REPOSITORY / "docs" / "results.md").read_text()
    own = page.splitlines()[page[: page.index(f"`{folder}`")].count("\n")]
    assert f"<!--={folder}#" in own, f"{experiment}: its numbers come from another folder"
    seeds = {int(p.stem.removeprefix("seed-")) for p in (REPOSITORY / folder).glob("seed-*.json")}
    assert len(seeds) == expected, f"{experiment}: {len(seeds)} records in {folder}"
    below, verbs, given = resolve(words_of(command))
    assert verbs == ["reproduce"], f"{experiment}: the row has no command"
    made = {
        seed
        for setting, seed in jobs_of(below.make_context("aureole", given).params)
        if setting == Path(folder).name
    }
    assert made == seeds, f"{experiment}: {command!r} makes seeds {sorted(made)}"


SKETCHES = [
    (page.relative_to(REPOSITORY).as_posix(), found[1])
    for page in PAGES
    if "_build" not in page.parts
    for found in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if ">>>" not in found[1]
]


@pytest.mark.parametrize(("page", "code"), SKETCHES)
def test_a_sketch_in_a_page_names_what_there_is(page, code):
    """What needs a server or files of a reader is not run; its names must exist all the same."""
    tree = ast.parse(code, page)
    scope = {"au": aureole}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aureole"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("au."):
            assert eval(ast.unparse(node), scope) is not None

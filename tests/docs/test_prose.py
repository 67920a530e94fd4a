"""What is typed in pages: no measured number, and no link that leads nowhere."""

import re
from pathlib import Path

import facts
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    p
    for p in (ROOT / "docs").rglob("*.md")
    if "_build" not in p.parts and "jupyter_execute" not in p.parts
)
FILES = [ROOT / "README.md", *PAGES]

# a decimal, or a whole number with the unit of a measurement
NUMBER = re.compile(
    r"(?<![\w.,/-])\d[\d,]*(?:\.\d+(?:e-?\d+)?| ?(?:ms|s|seconds|minutes|hours|kB|MB|GB|MiB|GiB|%|°)(?!\w))"
)

# settings, limits and names that are no measurement: (page, the words around the number)
ALLOWED = {
    ("cifar10h.md", "section 5.2 of [the paper"),
    ("comparison.md", "20 seconds a value, 120 seconds a set of draws"),
    ("comparison.md", "CC BY 4.0"),
    ("comparison.md", "a fixed environment (Python 3.8)"),
    ("controlled.md", "section 5.1 of [the paper"),
    ("commands.md", "2 GiB of them"),
    ("commands.md", "in 90 % of cases"),
    ("commands.md", "for masses other than 90 %"),
    ("databases.md", "OpenSearch 2.19 and later"),
    ("explorer.md", "Its set of 50 % contains"),
    ("explorer.md", "the set of 95 % contains"),
    ("explorer.md", "classes in its set of 50 %"),
    ("explorer.md", "A set of 95 % claims to contain the match in 95 of 100 cases"),
    ("explorer.md", "cropped to 40 % of its side"),
    ("explorer.md", "stays below 10 MB"),
    ("retrieval.md", "in bands of the cosine (the 0.999 quantile)"),
    ("own_encoder.md", "target for local encoders is 0.9"),
    ("own_encoder.md", "contain 90 % of the partners"),
    ("retrieval.md", "length 1 (within 0.001)"),
    ("retrieval.md", "enough to visit 99 % of the members"),
    ("retrieval_cifar10h.md", "caps of 90 %"),
    ("retrieval_cifar10h.md", "Sets of 90 % grow"),
    ("retrieval_cifar10h.md", "Sets of 50 % behave differently"),
    ("scale.md", "answer after 20 ms"),
    ("security.md", "lines of at most 64 MiB"),
    ("tables.md", "up to 2 GiB"),
    ("tables.md", "has at most 64 MiB"),
    ("scale_training.md", "that is 22 kB"),  # 4 N (D + 1) with the N and D of the sentence
    ("scale_training.md", "every 30 seconds"),
    ("serve.md", "more than 1 % of the old ids"),
    ("serve.md", "with the old kappas is below 0.5"),
    ("serve.md", "finds less than 0.98 of the members"),
    ("serve.md", "nominal coverage by 0.05"),
    ("serve.md", "A request may have 16 MB"),
    ("serve.md", "take 30 s"),
    ("security.md", "ends after 15 seconds"),
    ("serve.md", "for 7 s"),
    ("serve.md", "may pause for 5 s"),
    ("serve.md", "a 503 after 5 s at most"),
    ("serve.md", "come within 2 ms"),
    ("sphere.md", "0.05, 0.5, 0.95 and"),
    ("README.md", "Apache-2.0"),
    ("README.md", "calibrated to contain 90 % of the partners"),
    ("README.md", "caps of a mass of 0.9"),
    ("faq.md", "All my scores are around 0.8"),
    ("faq.md", "cosines of 0.7 or more"),
    ("faq.md", "Python 3.11 or later, torch 2.6 or later"),
    ("installation.md", "Python 3.11 or later"),
    ("troubleshooting.md", "Ray 2.59 or later"),
    ("README.md", "Python 3.11 or later"),
    ("ambiguous_labels.md", "0.5 is chance level"),
    ("finished_encoder.md", "At 90 %, where it is calibrated"),
    ("postgres.md", "among the results with 90 %"),
    ("postgres.md", "is right with 90 %"),
}


def prose(text):
    """The text with blanks where there is code, a role, a directive, a formula or a fact; lines stay where they are."""
    blank = (
        r"^(?P<fence>`{3,}|:{3,})[^\n]*\n.*?^(?P=fence)\s*$",
        r"\$\$.*?\$\$",
        r"<!--.*?-->",
    )
    for pattern in (
        *blank,
        r"(?:\{[\w:-]+\})?(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)",
        r"\$[^$]+?\$",
        r"\]\([^)\n]*\)",
    ):
        text = re.sub(
            pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL | re.MULTILINE
        )
    return text


def typed(path):
    """(line, words around it) of each number in prose that is not allowed."""
    text = prose(path.read_text())
    flat = text.replace("\n", " ")
    allowed = set()
    quoted = [("README.md", quote) for quote in facts.quotes()] if path.name == "README.md" else []
    for page, words in [*ALLOWED, *quoted]:
        if page == path.name:
            pattern = r"\s+".join(map(re.escape, words.split()))
            for found in re.finditer(pattern, flat):
                allowed.update(range(*found.span()))
    return [
        (text[: m.start()].count("\n") + 1, flat[max(0, m.start() - 30) : m.end() + 20].strip())
        for m in NUMBER.finditer(flat)
        if m.start() not in allowed
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_number_is_typed_that_a_record_should_tell(path):
    assert typed(path) == [], (
        "quote it with {fact}`...` (docs/_ext/facts.py), or allow it in ALLOWED"
    )


def test_what_is_allowed_is_there():
    """An entry that fits nothing would let a later number through unseen."""
    texts = {path.name: " ".join(prose(path.read_text()).split()) for path in FILES}
    assert [entry for entry in ALLOWED if entry[1] not in texts[entry[0]]] == []


@pytest.mark.parametrize(
    "text",
    [
        "It took 0.52 s.",
        "In 40 seconds.",
        "It is 97 % right.",
        "| a | 1,204.5 |",
        "error 3.2e-7 here",
        "(98 MB)",
    ],
)
def test_a_typed_number_is_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nText.\n\n{text}\n")
    assert [line for line, _ in typed(page)] == [5]


@pytest.mark.parametrize(
    "text",
    [
        "It took {fact}`results/a.json#x:.2f` s.",
        "```python\nx = 0.52\n```",
        "With `mass=0.95` and $p = 0.95$.",
        "From 10,000 rows, D = 128, in 2019.",
    ],
)
def test_code_facts_formulas_and_counts_are_not(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{text}\n")
    assert typed(page) == []


def test_every_promise_has_a_test_that_exists():
    page = (ROOT / "docs/security.md").read_text()
    rows = (
        page.partition("| promise | before | now | test |")[2].partition("\n\n")[0].splitlines()[2:]
    )
    assert len(rows) > 15
    for row in rows:
        path, name = re.search(r"\| `([\w/]+\.py)`, `(test_\w+)` \|", row).groups()
        assert f"\ndef {name}(" in (ROOT / path).read_text(), row


def links(text):
    """The targets of Markdown links and pictures outside code."""
    code = r"^(`{3,})[^\n]*\n.*?^\1\s*$|(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)"
    text = re.sub(code, "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(<?([^)\s>]+)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)


@pytest.mark.parametrize(
    "path",
    [*FILES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_relative_links_lead_to_files(path):
    broken = []
    for target in links(path.read_text()):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        if not (path.parent / target.partition("#")[0]).exists():
            broken.append(target)
    assert broken == []


def test_a_link_that_leads_nowhere_would_be_seen():
    assert links("See [a](a.md#b), ![p](p.png 'title') and `[c](c.md)`.") == ["a.md#b", "p.png"]


def stray_targets(text):
    """Explicit targets, ``(name)=``, that do not stand above a heading: links to them lead elsewhere."""
    return re.findall(r"^\(([\w-]+)\)=\n(?!#)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_targets_stand_above_their_headings(path):
    assert stray_targets(path.read_text()) == []


def test_a_target_above_another_one_is_found():
    assert stray_targets("(a)=\n\n(b)=\n## B\n\n## A\n") == ["a"]


def test_commands_in_the_docs_name_files_that_exist():
    """``python -m benchmarks.NAME`` and ``tests/...py`` in prose or consoles are there."""
    missing = []
    for path in FILES:
        text = path.read_text()
        for module in re.findall(r"python -m (benchmarks(?:\.\w+)+)", text):
            if not (ROOT / (module.replace(".", "/") + ".py")).exists():
                missing.append((path.name, module))
        for name in re.findall(r"`((?:tests|benchmarks|results|src)/[\w./-]+\.\w+)`", text):
            if not (ROOT / name).exists() and not any(
                (ROOT / where / name).exists() for where in ("results", "paper/results")
            ):
                missing.append((path.name, name))
    assert missing == []

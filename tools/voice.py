"""How the project sounds: a random sample of its English, and phrases to replace by standard terms.

``python tools/voice.py --seed 0`` prints 60 docstrings (first paragraph), messages and help texts with their places, to
be read by a person. ``python tools/voice.py --check`` lists every phrase of ``PHRASES`` in the sources and pages with
the term to use instead, and exits with 1 if there are any. A legitimate use goes into ``ALLOWED``. ``--check --soft``
also lists words that are often, but not always, the wrong ones; they do not count for the exit code.
"""

import argparse
import ast
import random
import re
import sys
import textwrap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = 60
CODE = ("src/aureole", "paper/src")
TEXTS = (
    "src/aureole/**/*.py",
    "paper/**/*.py",
    "paper/**/*.md",
    "paper/**/*.toml",
    "docs/**/*.md",
    "web/src/*",
    "web/index.html",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
SKIPPED = ("_build", "node_modules", "__pycache__")

# Each pattern matches from the start of a word to the end of one. A space also matches a line break, in a comment or
# between adjacent string literals.
PHRASES = {
    r"(is|are|was|were) (not there|(?-i:none)\b(?! (of|other)\b))": "does not exist, is missing, not found",
    r"(is|are) no (file|folder|table|such)": "is not a ..., does not exist",
    r"whole or not at all\b|is there when it is whole\b|whole files?": "written atomically",
    r"dear": "expensive; cached",
    r"(goes|go|going|went|gone) on": "resumes, continues",
    r"nobody is left\b|without an answer": "graceful shutdown: in-flight requests are answered",
    r"is no place for": "not thread-safe; calls are serialised",
    r"what it falls back to": "fallback, default",
    r"what is heavy": "heavy (lazy) imports",
    r"whoever\b|whom\b|(for|of|to|by|from|with) who": "the client, the operator, you",
    r"who (asked|asks|runs|cannot|will|wants|would|reads)": "the client, the operator, you",
    r"beside\b|lanes? of (its|their) own": "in parallel; next to; alongside; compared with",
    r"(told|tells?)": "reported, logged, prints, raises",
    r"as (many|much) as \w+ asks?\b|as \w+ asks": "default: ...",
    r"anew": "rebuilt, recreated",
    r"rooms?\b(?! (for|left)\b)|houses\b|manners?": "packages, modules, conventions",
    r"(lies?|lying|is|are) far from (all|any|every)": "out-of-distribution inputs",
    r"belongs? together": "matching pairs, positives",
    r"doubts?\b|doubtful": "uncertainty, uncertain",
    r"sure(r|st)?": "confident; concentrated; (un)certain",
    r"Possible (is|are) also": "Other valid options: ...",
    r"must come of\b|comes? of the": "must be produced by",
    r"has not as many": "has 12 entries ..., but ...",
}
SOFT = {
    r"there (is|are) no": "does not exist, is missing, not found",
    r"says?": "reports, states, prints",
    r"figures?": "metrics (a drawing is a figure)",
    r"(wants?|knows?)": "needs; the program does things",
    r"kept": "cached, stored, retained",
    r"otherwise": "fallback, default",
    r"mend(s|ed)?": "fix, correct",
    r"speaks?": "supports",
}
# (file, phrase in its context): legitimate uses. Both are regular expressions.
ALLOWED = (
    (r".", r"know how sure (they are|it is)"),  # the project's tagline
    (r".", r"ma(k|d)(e|es|ing) sure"),
    # sentences that a tutorial embeds: other words would change its numbers
    (r"finished_encoder\.md$", r"beside a red barn|as far as one can tell"),
    # a key in the records of credible retrieval
    (r"paper/.*retrieval(_report)?\.py$", r'"sure"'),
)


@dataclass(frozen=True)
class Text:
    """A text a reader meets, and its place."""

    kind: str
    path: Path
    line: int
    text: str


def texts(path: Path) -> Iterator[Text]:
    """The docstrings, messages and help texts of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield Text("docstring", path, node.body[0].lineno, docstring.split("\n\n")[0])
        match node:
            case ast.Raise(exc=ast.Call(args=[message, *_])):
                yield from literal("message", path, message)
            case ast.Call(
                func=ast.Attribute(attr="warn" | "warning" | "error"), args=[message, *_]
            ):
                yield from literal("message", path, message)
            case ast.keyword(arg="help" | "short_help" | "epilog", value=value):
                yield from literal("help", path, value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.endswith("HELP"):
                yield from literal("help", path, value)


def literal(kind: str, path: Path, node: ast.expr) -> Iterator[Text]:
    """The text of a string or an f-string, its expressions in braces; nothing for other values."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    shown = ""
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            shown += part.value
        elif isinstance(part, ast.FormattedValue):
            shown += "{" + ast.unparse(part.value) + "}"
        else:
            return
    if shown.strip():
        yield Text(kind, path, node.lineno, shown)


def print_sample(seed: int, count: int) -> None:
    """Print a sample of the texts: as many of each kind, as far as there are enough."""
    paths = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    pool = [text for path in paths for text in texts(path)]
    generator = random.Random(seed)
    generator.shuffle(pool)
    kinds = ("docstring", "message", "help")
    chosen = [text for kind in kinds for text in [t for t in pool if t.kind == kind][: count // 3]]
    rest = [text for text in pool if text not in chosen]
    chosen = sorted([*chosen, *rest[: count - len(chosen)]], key=lambda t: (t.kind, t.path, t.line))
    for text in chosen:
        print(f"{text.path.relative_to(ROOT)}:{text.line} [{text.kind}]")
        print(textwrap.indent(text.text.strip(), "    "), end="\n\n")
    counts = ", ".join(f"{sum(t.kind == kind for t in pool):,} {kind}s" for kind in kinds)
    print(f"{len(chosen)} of {len(pool):,} texts ({counts}), seed {seed}")


def spaced(pattern: str) -> str:
    """The pattern, with spaces that match line breaks, comment marks and quotes between string literals."""
    return pattern.replace(" ", r"""(?:\s|#|["']|\bf(?=["']))+""")


def hits(phrases: dict[str, str]) -> Iterator[tuple[str, int, str, str]]:
    """(file, line, the text around a phrase, the term to use) for every use that is not allowed."""
    terms = list(phrases.values())
    groups = "|".join(f"(?P<p{number}>{spaced(phrase)})" for number, phrase in enumerate(phrases))
    pattern = re.compile(rf"\b(?:{groups})\b", re.IGNORECASE)
    allowed = [(re.compile(file), re.compile(spaced(use), re.IGNORECASE)) for file, use in ALLOWED]
    for path in sorted({path for glob in TEXTS for path in ROOT.glob(glob) if path.is_file()}):
        name = path.relative_to(ROOT).as_posix()
        if any(part in SKIPPED for part in path.parts):
            continue
        text = path.read_text(encoding="utf-8")
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        uses = [use for file, use in allowed if file.search(name)]
        spans = [match.span() for use in uses for match in use.finditer(text)]
        for match in pattern.finditer(text):
            if any(start <= match.start() and match.end() <= end for start, end in spans):
                continue
            line = bisect_right(starts, match.start())
            around = text[max(starts[line - 1], match.start() - 40) : match.end() + 40]
            yield name, line, " ".join(around.split()), terms[int(match.lastgroup[1:])]


def print_hits(phrases: dict[str, str]) -> int:
    """Print the hits, and return how many there are."""
    found = sorted(hits(phrases))
    for file, line, around, term in found:
        print(f"{file}:{line}: ...{around}...\n    -> {term}")
    return len(found)


def main() -> int:
    """Print a sample, or check the phrases."""
    parser = argparse.ArgumentParser(
        description="A sample of the project's English, or a check of its phrases."
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    parser.add_argument("--count", type=int, default=SAMPLES, help="Texts to print.")
    parser.add_argument(
        "--check", action="store_true", help="List phrases to replace; exit with 1 if any."
    )
    parser.add_argument(
        "--soft", action="store_true", help="With --check: also list words that are often wrong."
    )
    options = parser.parse_args()
    if not options.check:
        print_sample(options.seed, options.count)
        return 0
    count = print_hits(PHRASES)
    if options.soft:
        print(f"\nprobably wrong: {print_hits(SOFT)} more")
    print(f"{count} phrases to replace")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())

"""Plans: which settings, tables and figures make up each section of a report, and the sections that have runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aureole.explorer import Gallery, Picture, Section, Table
from aureole_paper.records import Groups
from aureole_paper.tables import present

Text = str | Callable[[Groups], str]  # a text may depend on the runs
Draw = Callable[[Groups], str | None]


@dataclass(frozen=True)
class Plan:
    """How a section is made.

    It is there if a setting of ``names`` that is not among ``beside`` has runs. ``owns`` is False for a section that
    looks at runs which belong elsewhere. Figures are a drawing function and a caption, whose first sentence names it.
    """

    anchor: str
    title: str
    text: Text
    names: Callable[[Groups], Sequence[str]]
    tables: Callable[[Groups, Sequence[str]], Sequence[Table]] = lambda *_: ()
    beside: tuple[str, ...] = ()
    figures: tuple[tuple[Draw, Text], ...] = ()
    galleries: Callable[[Groups], Sequence[Gallery]] = lambda _: ()
    owns: bool = True


def build_sections(
    plans: Sequence[Plan], groups: Groups, rest: Callable[[Groups, Sequence[str]], Table]
) -> list[Section]:
    """The sections that have runs of their own, in the plans' order; ``rest`` makes a table of all runs left over."""
    sections: list[Section] = []
    used: set[str] = set()
    for plan in plans:
        names = plan.names(groups)
        if not present(groups, [name for name in names if name not in plan.beside]):
            continue
        shown = present(groups, names)
        tables = tuple(table for table in plan.tables(groups, names) if table.rows)
        pictures = tuple(_pictures(plan, groups))
        galleries = tuple(plan.galleries(groups))
        if not tables and not pictures and not galleries:
            continue
        runs = tuple(run for name in shown for run in groups[name])
        text = _told(plan.text, groups)
        sections.append(Section(plan.anchor, plan.title, text, tables, pictures, runs, galleries))
        used.update(shown if plan.owns else ())
    left = [name for name in groups if name not in used]
    if left:
        runs = tuple(run for name in left for run in groups[name])
        text = "Records in the folder that no other section shows."
        table = rest(groups, left)
        sections.append(Section("other", table.title, text, (table,), (), runs))
    return sections


def fixed(*names: str) -> Callable[[Groups], list[str]]:
    """These settings, whatever the runs."""
    return lambda _: list(names)


def _pictures(plan: Plan, groups: Groups) -> list[Picture]:
    drawn = [(draw(groups), caption) for draw, caption in plan.figures]
    found = [(svg, _told(caption, groups)) for svg, caption in drawn if svg]
    return [Picture(svg, caption, caption.split(". ")[0]) for svg, caption in found]


def _told(text: Text, groups: Groups) -> str:
    return text if isinstance(text, str) else text(groups)

"""AmbiEnt: ambiguous sentences, and for each the sentences that say one of its meanings alone.

Liu et al. (2023), We're afraid language models aren't modeling ambiguity.
"""

from dataclasses import dataclass
from pathlib import Path

from aureole.errors import InvalidInputError
from aureole_paper.lines import read_json_lines


@dataclass(frozen=True)
class Ambiguous:
    """A sentence that can be read in several ways, and sentences that can be read in one of them only."""

    sentence: str
    readings: tuple[str, ...]


def load_ambient(folder: Path) -> list[Ambiguous]:
    """The ambiguous premises and hypotheses, each sentence once, from the data folder."""
    path = folder / "text" / "ambient_full.jsonl.gz"
    found: dict[str, dict[str, None]] = {}
    for item in read_json_lines(path):
        try:
            for part in ("premise", "hypothesis"):
                if item[f"{part}_ambiguous"]:
                    sentence = item[part]
                    readings = found.setdefault(sentence, {})
                    for reading in item["disambiguations"]:
                        if reading[part] != sentence:
                            readings[reading[part]] = None
        except (KeyError, TypeError) as error:
            raise InvalidInputError(f"{path} is not AmbiEnt: {error!r} in {item}.") from error
    return [Ambiguous(s, tuple(readings)) for s, readings in found.items() if readings]

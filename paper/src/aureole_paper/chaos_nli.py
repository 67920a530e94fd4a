"""ChaosNLI: a hundred people's votes on whether one sentence follows from another.

Nie et al. (2020), What can we learn from collective human opinions on natural language inference data?
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aureole.errors import InvalidInputError
from aureole_paper.lines import read_json_lines


@dataclass(frozen=True)
class Judged:
    """A premise, a hypothesis, and the entropy of the votes in bits."""

    premise: str
    hypothesis: str
    entropy: float


def load_chaos_nli(folder: Path, part: Literal["snli", "mnli_m"]) -> list[Judged]:
    """The pairs of one of its sources, from the data folder."""
    path = folder / "text" / f"chaosNLI_{part}.jsonl.gz"
    try:
        return [
            Judged(x["example"]["premise"], x["example"]["hypothesis"], float(x["entropy"]))
            for x in read_json_lines(path)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is not ChaosNLI: {error!r}.") from error

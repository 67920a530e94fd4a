"""The text data sets: Multi30k captions, AmbiEnt, ChaosNLI and the STS benchmark."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aureole.errors import InvalidInputError
from aureole_paper.data_folder import require_file

CAPTIONS = 5
_MAX_LINE = 1_000_000  # characters


@dataclass(frozen=True)
class Ambiguous:
    """An ambiguous sentence, and sentences that have one of its meanings only."""

    sentence: str
    readings: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """A premise, a hypothesis, and the entropy of the votes in bits."""

    premise: str
    hypothesis: str
    entropy: float


class Similar(NamedTuple):
    """Two sentences and how similar people find them, from 0 to 5."""

    first: str
    second: str
    score: float


def load_captions(folder: Path, split: Literal["train", "val", "test_2016"]) -> list[list[str]]:
    """The five captions of each photo of a split of Multi30k; the first is the longest on average.

    Elliott et al. (2016), Multi30K: multilingual English-German image descriptions.
    """
    columns = [
        read_lines(folder / "text" / f"multi30k_{split}.{number}.en.gz")
        for number in range(1, CAPTIONS + 1)
    ]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise InvalidInputError(
            f"the caption files of {split} have {sorted(lengths)} lines, but they must have the same number."
        )
    return [list(captions) for captions in zip(*columns, strict=True)]


def load_ambient(folder: Path) -> list[Ambiguous]:
    """The ambiguous premises and hypotheses of AmbiEnt, each sentence once.

    Liu et al. (2023), We're afraid language models aren't modeling ambiguity.
    """
    path = folder / "text" / "ambient_full.jsonl.gz"
    readings: dict[str, dict[str, None]] = {}
    for item in read_json_lines(path):
        try:
            for part in ("premise", "hypothesis"):
                if item[f"{part}_ambiguous"]:
                    own = readings.setdefault(item[part], {})
                    texts = (reading[part] for reading in item["disambiguations"])
                    own.update(dict.fromkeys(text for text in texts if text != item[part]))
        except (KeyError, TypeError) as error:
            raise InvalidInputError(f"{path} is not AmbiEnt: {error!r} in {item}.") from error
    return [Ambiguous(sentence, tuple(own)) for sentence, own in readings.items() if own]


def load_chaos_nli(folder: Path, part: Literal["snli", "mnli_m"]) -> list[Judged]:
    """A part of ChaosNLI: a hundred votes each on whether one sentence follows from another.

    Nie et al. (2020), What can we learn from collective human opinions on natural language inference data?
    """
    path = folder / "text" / f"chaosNLI_{part}.jsonl.gz"
    try:
        return [
            Judged(x["example"]["premise"], x["example"]["hypothesis"], float(x["entropy"]))
            for x in read_json_lines(path)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is not ChaosNLI: {error!r}.") from error


def load_stsb(folder: Path, part: Literal["train", "dev", "test"]) -> list[Similar]:
    """A part of STS-B: pairs of sentences with a similarity score.

    Cer et al. (2017), SemEval-2017 task 1.
    """
    path = folder / "text" / f"stsb_{part}.tsv.gz"
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        try:
            pairs.append(Similar(fields[5], fields[6], float(fields[4])))
        except (IndexError, ValueError) as error:
            raise InvalidInputError(f"{path}, line {number} is not STS-B: {error!r}.") from error
    return pairs


def read_lines(path: Path) -> list[str]:
    """The lines of a gzipped UTF-8 file, without line endings."""
    lines = []
    try:
        with gzip.open(require_file(path), "rt", encoding="utf-8", newline="\n") as file:
            while line := file.readline(_MAX_LINE + 1):
                if len(line) > _MAX_LINE:
                    raise InvalidInputError(
                        f"{path}, line {len(lines) + 1} is longer than {_MAX_LINE:,} characters."
                    )
                lines.append(line.rstrip("\r\n"))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from error
    return lines


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a gzipped file with one JSON object per line."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"{path}, line {number} is not JSON: {error}.") from error
        if not isinstance(value, dict):
            raise InvalidInputError(f"{path}, line {number} is not a JSON object.")
        yield value

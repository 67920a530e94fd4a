"""Requests made from the API's own description, good and bad, by schemathesis."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Tally", "fuzz", "look"]


@dataclass
class Tally:
    """How many answers of each status there were, and what was wrong with some."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests were answered."""
        return sum(self.statuses.values())


def fuzz(url: str, examples: int, *, seed: int = 0, most: int | None = None) -> Tally:
    """A tally of ``examples`` requests at most for each operation and kind of data (valid, invalid)."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed as seeded, settings
    from schemathesis.generation import GenerationMode

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    tally = Tally()
    quiet = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    )

    def run(strategy: Any) -> None:
        @seeded(seed)
        @quiet
        @given(case=strategy)
        def ask(case: Any) -> None:
            if most is not None and tally.requests >= most:
                return
            answer = case.call()
            tally.statuses[answer.status_code] += 1
            tally.faults += look(case, answer)

        ask()

    for result in schema.get_all_operations():
        found: Any = result
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                run(operation.as_strategy(generation_mode=mode))
            except Exception as error:
                # an operation without parameters has no bad data
                if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
                    raise
    return tally


def look(case: Any, answer: Any) -> list[str]:
    """What is wrong with an answer: its status or shape against the description, or markup in it."""
    from schemathesis.specs.openapi import checks

    found = []
    what = f"{case.operation.method.upper()} {case.operation.path}: {answer.status_code}"
    wanted = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    try:
        case.validate_response(answer, checks=wanted)
    except BaseExceptionGroup as group:
        found += [f"{what} {str(error)[:300]}" for error in group.exceptions]
    if answer.status_code >= 500:
        found.append(f"{what} is an error of the service")
    if answer.status_code >= 400:
        try:
            typed = set(json.loads(answer.content)["error"]) == {"code", "message", "field"}
        except (ValueError, KeyError, TypeError):
            typed = False
        if not typed:
            found.append(f"{what} has no typed body: {answer.content[:200]!r}")
    kind = answer.headers.get("content-type", [""])[0]
    if kind.startswith("application/json") and b"<" in answer.content:
        found.append(f"{what} holds markup")
    return found

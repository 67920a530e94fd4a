"""Valid and invalid requests that schemathesis generates from the API's own schema; AUREOLE_REQUESTS sets how many."""

import json
import os
from collections import Counter
from itertools import cycle

import pytest

from tests.serve.served import serving as served

REQUESTS = int(os.environ.get("AUREOLE_REQUESTS", "300"))
schemathesis = pytest.importorskip("schemathesis")


def faults(case, answer):
    """What is wrong with a response: not documented, an internal error, or an error that is not typed."""
    from schemathesis.specs.openapi import checks

    what = f"{case.operation.method.upper()} {case.operation.path}: {answer.status_code}"
    wanted = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    try:
        case.validate_response(answer, checks=wanted)
    except BaseExceptionGroup as group:
        yield from (f"{what} {str(error)[:300]}" for error in group.exceptions)
    if answer.status_code >= 500:
        yield f"{what} is an internal error"
    if answer.status_code >= 400:
        try:
            typed = set(json.loads(answer.content)["error"]) == {"code", "message", "field"}
        except (ValueError, KeyError, TypeError):
            typed = False
        if not typed:
            yield f"{what} has no typed body: {answer.content[:200]!r}"


@pytest.mark.filterwarnings("ignore")
def test_generated_requests_have_documented_answers(made, tmp_path):
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from schemathesis.generation import GenerationMode

    statuses, wrong = Counter(), []

    def call(case):
        answer = case.call()
        statuses[answer.status_code] += 1
        wrong.extend(faults(case, answer))

    log = tmp_path / "log"
    with served(made[0] / "gallery.faiss", made[0] / "encoder", log=log) as service:
        api = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
        operations = [each.ok() for each in api.get_all_operations()]
        each = max(2, REQUESTS // (2 * len(operations)))
        for number, (operation, mode) in enumerate(
            cycle([(o, m) for o in operations for m in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)])
        ):  # fmt: skip
            if sum(statuses.values()) >= REQUESTS or number >= 8 * len(operations):
                break
            test = given(case=operation.as_strategy(generation_mode=mode))(lambda case: call(case))
            quiet = settings(
                max_examples=each,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                quiet(seed(number)(test))()
            except Exception as error:  # an operation without parameters has no invalid data
                if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
                    raise
    print(dict(statuses))
    assert wrong == []
    assert sum(statuses.values()) >= REQUESTS
    assert "Traceback" not in log.read_text()

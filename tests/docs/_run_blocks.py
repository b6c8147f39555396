"""Run blocks of code in one namespace, and say what each printed. Started by the tests.

Reads `{"page": path, "blocks": [[line, source], ...]}` from standard input, and writes a list of
`{"printed", "error", "traceback"}`.
"""

import contextlib
import io
import json
import sys
import traceback


def main() -> None:
    job = json.load(sys.stdin)
    namespace = {"__name__": "__main__"}
    outcomes = [run(job["page"], line, source, namespace) for line, source in job["blocks"]]
    json.dump(outcomes, sys.stdout)


def run(page: str, line: int, source: str, namespace: dict) -> dict:
    outcome = {"error": None, "traceback": ""}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            # The empty lines make tracebacks name the line of the page.
            exec(compile("\n" * (line - 1) + source, page, "exec"), namespace)
        except Exception as error:
            outcome["error"] = f"{type(error).__name__}: {error}\n"
            outcome["traceback"] = traceback.format_exc()
    outcome["printed"] = printed.getvalue()
    return outcome


if __name__ == "__main__":
    main()

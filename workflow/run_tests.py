"""Run those tests of the project that an expression of pytest's markers selects, and keep how each ended.

Called by the workflow to say on which card they pass; `make test` runs all of them.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

import pandas as pd
import pytest

from recurformer.cards import own_cards
from recurformer.files import atomic_path
from recurformer.records import run_record

ROOT = Path(__file__).resolve().parents[1]


class Outcomes:
    """A pytest plugin: one row for each test that was selected."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how the test itself ended, or that it was skipped or failed before or after."""
        if report.when == "call" or not report.passed:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.rows.append((report.nodeid, report.outcome, round(report.duration, 3), reason))


def run(markers: str, target: str) -> None:
    """Run the tests and write test, outcome, seconds, reason.

    Raises:
        ValueError: a test failed, or none ran to its end.
    """
    outcomes = Outcomes()
    code = pytest.main(["-m", markers, "--rootdir", str(ROOT), str(ROOT / "tests")], plugins=[outcomes])
    frame = pd.DataFrame(outcomes.rows, columns=["test", "outcome", "seconds", "reason"])
    if code != pytest.ExitCode.OK:
        raise ValueError(f"tests {markers!r}: {(frame.outcome == 'failed').sum()} failed (pytest's exit code {code:d})")
    if not (frame.outcome == "passed").any():
        reasons = "; ".join(sorted(set(frame.reason)))
        raise ValueError(f"tests {markers!r}: all {len(frame)} were skipped ({reasons})")
    with atomic_path(target) as path:
        frame.to_csv(path, index=False)


def main() -> int:
    """Exit codes: 0 done, 1 a test failed or none ran (one line on standard error)."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("tests", help="CSV file to write: one row a test")
    parser.add_argument("--markers", required=True, help="such as gpu, or 'gpu and not slow'")
    parser.add_argument("--record", help="write a run record (JSON) to this file")
    args = parser.parse_args()
    try:
        with own_cards(1), run_record(
            args.record, "device_tests", sys.argv[1:], {"markers": args.markers}, outputs=[args.tests],
            program="python workflow/run_tests.py",
        ):  # fmt: skip
            run(args.markers, args.tests)
    except ValueError as error:
        print(f"run_tests: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the paper's reviewers asked, question by question, as `questions.yaml` has it."""

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        id: its name in the table and the ledger.
        question: one sentence, which can be answered with yes where it can be tested.
        asked_by: numbers of the reviewers, "–" where none of them asked it.
    """

    id: str
    question: str
    asked_by: str

    @property
    def place(self) -> str:
        """Where it was asked, as a reader would say it."""
        if not self.asked_by[0].isdigit():
            return "Reviews, left open by the paper"
        return f"Reviews, reviewer{'s' if ',' in self.asked_by else ''} {self.asked_by.replace(', ', ' and ')}"


_FILE = Path(__file__).with_name("questions.yaml")
QUESTIONS = {name: Question(name, **entry) for name, entry in yaml.safe_load(_FILE.read_text("utf-8")).items()}
"""Every question: id -> question."""

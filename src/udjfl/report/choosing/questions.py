"""The questions of the guide, and the answers to them.

The four situations of the first question follow the hospitals of Carey & Wu (FAccT 2025), who
extend an example of Donahue & Kleinberg (2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from udjfl.errors import SettingsError, did_you_mean

NO_LIMIT, ALONE = "none", "alone"


@dataclass(frozen=True)
class Choice:
    """One answer to choose: its name in flags and documents, and the sentence to read."""

    key: str
    text: str
    theory: str | None = None


@dataclass(frozen=True)
class Question:
    """A question with answers to choose from, or, without any, with a number to give.

    default   the answer for a person who gives none
    why       what depends on the answer
    words     the answers allowed besides a number
    """

    key: str
    text: str
    why: str
    default: str
    choices: tuple[Choice, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    def read(self, answer: str) -> str:
        """Return the answer in its one written form, or raise a ValueError that says what to do."""
        answer = answer.strip().lower()
        if self.choices:
            keys = [choice.key for choice in self.choices]
            if answer not in keys:
                raise ValueError(f"{answer!r} is no answer.{did_you_mean(answer, keys)}")
            return answer
        if answer in self.words:
            return answer
        try:
            number = float(answer)
        except ValueError:
            number = math.nan
        if not 0 <= number <= 100:
            words = " or ".join(repr(word) for word in self.words)
            raise ValueError(f"{answer!r} is no answer. Give a number from 0 to 100, or {words}.")
        return f"{number:g}"


QUESTIONS = (
    Question(
        "aim",
        "Which of these is most like your federation?",
        "It decides which theory of justice is tried. The situations are hospitals that train one "
        "model to read scans; put your own clients in their place.",
        "undecided",
        (
            Choice(
                "lift",
                "One hospital sees too few patients to get a good model by itself. The others "
                "could do without it, and join so that it is helped.",
                "rawls",
            ),
            Choice(
                "equal",
                "One hospital cannot pay for a good scanner. Its patients should still be "
                "served as well as those of the others.",
                "egalitarian",
            ),
            Choice(
                "reward",
                "All had the same means, but some took more care with their scans. Their care "
                "should pay off for them.",
                "desert",
            ),
            Choice(
                "whole",
                "All took care, but each region sees only some of the diseases. One model should "
                "be as good as possible over all of them.",
                "utilitarian",
            ),
            Choice("undecided", "None of these, or we do not agree: show what all four would do."),
        ),
    ),
    Question(
        "cause",
        "Why are the data of some clients worse than those of others?",
        "A loss is easier to defend against a client that could have acted otherwise.",
        "unknown",
        (
            Choice("means", "They lack means: money, equipment, trained people."),
            Choice("choice", "They could have done better, and chose not to."),
            Choice("place", "They see few cases, or only some kinds of them."),
            Choice("nature", "Their cases are harder by nature: the data are as good as can be."),
            Choice("unknown", "We do not know."),
        ),
    ),
    Question(
        "gap",
        "How large is the difference in quality between the best and the worst data?",
        "The larger it is, the more there is to gain, and to lose, by choosing whom to serve.",
        "unknown",
        (
            Choice("small", "Small: each client could use a model of any other."),
            Choice("clear", "Clear: some models would be worse elsewhere, but of use."),
            Choice("severe", "Severe: a model of the best data would be of little use to some."),
            Choice("unknown", "We do not know."),
        ),
    ),
    Question(
        "false_reports",
        "Could a client gain by false reports, or could labels be wrong on purpose?",
        "Uncertainties and scores are measured by the clients themselves.",
        "unknown",
        (
            Choice("no", "No: the clients, and who labels for them, are trusted."),
            Choice("yes", "Yes, or labels are so noisy that it comes to the same."),
            Choice("unknown", "We do not know."),
        ),
    ),
    Question(
        "examples",
        "How many labelled examples does the smallest client have for training?",
        "From few examples neither uncertainty nor accuracy can be told well.",
        "unknown",
        (
            Choice("few", "Fewer than 100."),
            Choice("some", "100 to 500."),
            Choice("many", "More than 500."),
            Choice("unknown", "We do not know."),
        ),
    ),
    Question(
        "budget",
        "How many points of the clients' mean accuracy may the theory cost, at most?",
        "A budget: the theory is pursued as far as it goes without costing more than that "
        "against FedAvg, which averages the clients' models.",
        "2",
        words=(NO_LIMIT,),
    ),
    Question(
        "client_limit",
        "How many points may a single client lose, at most?",
        "'alone' keeps every client at what a model trained on its own data only would give it; "
        "'none' sets no such limit. Needs a budget.",
        NO_LIMIT,
        words=(ALONE, NO_LIMIT),
    ),
)
BY_KEY = {question.key: question for question in QUESTIONS}


@dataclass(frozen=True)
class Answers:
    """An answer to each question; numbers as text, as they were given."""

    aim: str = "undecided"
    cause: str = "unknown"
    gap: str = "unknown"
    false_reports: str = "unknown"
    examples: str = "unknown"
    budget: str = "2"
    client_limit: str = NO_LIMIT

    @property
    def theory(self) -> str | None:
        """The theory of the first answer; None: all four are to be compared."""
        aims = {choice.key: choice.theory for choice in BY_KEY["aim"].choices}
        return aims[self.aim]

    @property
    def has_budget(self) -> bool:
        return self.budget != NO_LIMIT


def is_asked(question: Question, given: Mapping[str, str]) -> bool:
    """Return whether a question has a meaning after these answers."""
    return question.key != "client_limit" or given.get("budget") != NO_LIMIT


def read_answers(given: Mapping[str, str]) -> Answers:
    """Return checked answers, with defaults for the rest. One error lists every mistake."""
    read, mistakes = {}, []
    for key, answer in given.items():
        if key not in BY_KEY:
            mistakes.append(f"{key} is no question.{did_you_mean(key, BY_KEY)}")
            continue
        try:
            read[key] = BY_KEY[key].read(answer)
        except ValueError as error:
            mistakes.append(f"{key}: {error}")
    answers = Answers(**read)
    if not answers.has_budget and answers.client_limit != NO_LIMIT:
        mistakes.append(
            "client_limit: a limit for single clients goes with a budget; give budget a number, "
            "or leave client_limit out"
        )
    if mistakes:
        raise SettingsError(mistakes)
    return answers

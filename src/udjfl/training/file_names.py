"""The files of a run folder: their names, and what to do about a damaged or missing one."""

import re

from udjfl.training.record_file import CHECKPOINT, RECORDS, START_AGAIN

SETTINGS, VERSIONS = "settings.json", "versions.json"
MODEL, SERVED, RESULT = "model.safetensors", "served.safetensors", "result.json"
LEFTOVERS = (RECORDS, CHECKPOINT, "uncertainty.json", MODEL, SERVED, RESULT)
# Files that a killed process was writing, of this version and of older ones.
PARTS = re.compile(
    r"\.{0,2}[\w=-]+\.(json|jsonl|csv|safetensors|toml|md|png|svg)(\.[0-9a-f]{16})?\.part"
)

WRITTEN_ANEW = "run the same command again: it writes the file anew"
COPY_FIRST = f"if you changed it, copy it elsewhere to keep the change; then {WRITTEN_ANEW}"
MADE_AGAIN = (MODEL, SERVED, RESULT, "comparison.json")
ADVICE = {
    "uncertainty.json": "delete it and resume: the uncertainties are measured again",
    RECORDS: START_AGAIN,
    CHECKPOINT: START_AGAIN,
    **dict.fromkeys(MADE_AGAIN, "`udjfl resume` makes it again"),
    "tuned.toml": COPY_FIRST,
    # What a search writes last; beside it are files made of it.
    **dict.fromkeys(("choice.json", "frontier.json", "tune.json"), WRITTEN_ANEW),
}
RESTORE = "restore it, or start the run again elsewhere"
# Of the tables of runs of a search.
TRAIN_AGAIN = "delete it and run the same command again: its runs are trained again"


def find_advice(name: str) -> str:
    """Return what to do about a damaged or missing file."""
    if name in ADVICE:
        return ADVICE[name]
    if name.endswith(".csv"):
        return TRAIN_AGAIN
    return WRITTEN_ANEW if name.endswith((".toml", ".md", ".png", ".svg")) else RESTORE

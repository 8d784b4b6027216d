"""`udjfl watch`: on the page's own server, in a file, and stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from command import Command
from small_runs import make_federation, train_briefly

from udjfl.training.run_folder import RunFolder


def test_a_finished_run_is_written_once(udjfl_command: Command, tmp_path: Path) -> None:
    train_briefly(make_federation(), out=tmp_path / "run")
    page = tmp_path / "live.html"
    output = udjfl_command("watch", tmp_path / "run", "--html", page, "--every 0.5")
    assert (output.code, output.err) == (0, "")
    assert output.out.endswith("finished: 3 of 3 rounds in 1 run.\n")
    assert "Finished" in page.read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written_is_one_line(udjfl_command: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("text")
    output = udjfl_command("watch", tmp_path, "--html", tmp_path / "taken" / "live.html")
    assert output.code == 2
    assert output.lines[-1].startswith("udjfl: cannot write")


def test_the_address_is_printed_and_an_interrupt_ends_it(tmp_path: Path) -> None:
    settings = {"method": "fedavg", "params": {}, "seed": 0, "training": {"rounds": 3}}
    folder = RunFolder.create(tmp_path / "run", settings, {})
    process = subprocess.Popen(
        [sys.executable, "-m", "udjfl", "watch", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\S+/", address)
    with urllib.request.urlopen(address, timeout=30) as response:
        assert "Preparing" in response.read().decode()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.strip().endswith("udjfl: stopped")
    assert "Traceback" not in err
    folder.unlock()


def test_an_empty_settings_file_is_told_in_words(udjfl_command: Command, tmp_path: Path) -> None:
    (tmp_path / "settings.json").touch()
    output = udjfl_command("watch", tmp_path, "--every 0.5")
    assert output.code == 2
    assert "settings.json is damaged, and nothing writes there" in " ".join(output.err.split())

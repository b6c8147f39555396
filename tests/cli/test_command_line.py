"""Mistakes on the command line."""

import pytest
from click.testing import CliRunner

from jaxtribute.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch", "x.py"], "Missing option"),
        (["launch", "--workers", "0", "x.py"], "0 is not in the range"),
        (["launch", "--workers", "two", "x.py"], "'two' is not a valid integer"),
        (["launch", "--workers", "2"], "Missing argument 'SCRIPT'"),
        (["launch", "--workers", "2", "missing.py"], "There is no file 'missing.py'."),
        (["launch", "--workers", "2", "json"], "A module is given with -m."),
        (["launch", "--workers", "2", "."], "a directory without a __main__.py"),
        (["launch", "--workers", "2", "-m", "missing.x"], "There is no module 'missing'."),
        (["launch", "--workers", "2", "-m", "json.missing"], "no module 'json.missing'."),
        (["launch", "--workers", "2", "-m", "email"], "it has no module '__main__'"),
        (["launch", "--workers", "2", "-m", "this.x"], "'this' is no package"),
        (["launch", "--worker-count", "2", "x.py"], "No such option"),
        (["launch", "--workers", "2", "--ps", "0", "x.py"], "0 is not in the range"),
        (["launch", "--ps", "2", "x.py"], "Missing option '--workers'"),
        (["server", "--job", "chief"], "'chief' is not one of 'worker', 'ps'"),
        (["server", "--index", "-1"], "-1 is not in the range"),
        (["status", "--interval", "0"], "0.0 is not in the range"),
        (["doctor", "--tf-config", "@missing.json"], "'missing.json' cannot be read"),
        (["doctor", "--timeout", "0"], "0.0 is not in the range"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments, prog_name="jaxtribute")
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_the_version_is_told():
    result = CliRunner().invoke(main, ["--version"], prog_name="jaxtribute")
    assert result.output.startswith("jaxtribute, version ")

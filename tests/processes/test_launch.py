"""What is seen of a job that `jaxtribute launch` runs, and what its workers are given."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.processes._launcher import PREAMBLE, SECONDS, Launcher

pytestmark = pytest.mark.processes

TWO = ("--workers", "2")


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


class TestOutput:
    def test_each_line_says_whose_it_is_and_stays_on_its_stream(self, launcher):
        launcher.start(
            """
            print("to stdout", *sys.argv[1:])
            print("to stderr", file=sys.stderr)
            print("[Gloo] Rank 0 is connected to 1 peer ranks")
            print("no end of line", end="")
            """,
            *("--workers", "7", "-m"),  # which are the script's
            options=TWO,
        )
        assert launcher.result() == 0
        for index in range(2):
            assert f"worker:{index} | to stdout --workers 7 -m\n" in launcher.stdout
            assert f"worker:{index} | no end of line\n" in launcher.stdout
            assert f"worker:{index} | to stderr\n" in launcher.stderr
        assert "to stderr" not in launcher.stdout
        assert "Gloo" not in launcher.stdout
        assert all(line[:8] in ("worker:0", "worker:1") for line in launcher.stdout.splitlines())
        assert launcher.reported()[0].startswith("2 workers finished after ")

    def test_each_task_has_a_log(self, launcher, tmp_path):
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "worker-0.log").write_text("of an older job\n")
        launcher.start(
            "print('try', restart); print('error', file=sys.stderr); sys.exit(restart == 0)",
            options=[*TWO, "--log-dir", str(tmp_path / "logs"), "--max-restarts", "1"],
        )
        assert launcher.result() == 0
        log = (tmp_path / "logs" / "worker-0.log").read_text()
        assert "older job" not in log
        assert "try 1\n" in log
        assert (tmp_path / "logs" / "worker-1.log").read_text().count("error\n") >= 1

    def test_much_output_arrives_complete(self, launcher):
        launcher.start("for n in range(20_000): print('line', n)", options=TWO)
        assert launcher.result() == 0
        for index in range(2):
            lines = [x for x in launcher.stdout.splitlines() if x.startswith(f"worker:{index}")]
            assert lines[1:] == [f"worker:{index} | line {n}" for n in range(20_000)]


class TestEnvironment:
    def test_of_each_worker(self, launcher):
        launcher.start(
            """
            names = ["TF_CONFIG", "JAX_NUM_CPU_DEVICES", "PJRT_NPROC", "JAXTRIBUTE_CLUSTER_KEY"]
            print(json.dumps({name: os.environ[name] for name in names}))
            """,
            options=[*TWO, "--devices-per-worker", "2"],
        )
        assert launcher.result() == 0
        told = sorted(line for line in launcher.stdout.splitlines() if "TF_CONFIG" in line)
        first, second = (json.loads(line.partition(" | ")[2]) for line in told)
        assert json.loads(first["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
        assert json.loads(second["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
        cluster = json.loads(first["TF_CONFIG"])["cluster"]
        assert cluster == json.loads(second["TF_CONFIG"])["cluster"]
        assert len(set(cluster["worker"])) == 2
        assert first["JAX_NUM_CPU_DEVICES"] == "2"
        assert int(first["PJRT_NPROC"]) >= 8
        assert len(first["JAXTRIBUTE_CLUSTER_KEY"]) == 64
        assert first["JAXTRIBUTE_CLUSTER_KEY"] == second["JAXTRIBUTE_CLUSTER_KEY"]
        assert first["JAXTRIBUTE_CLUSTER_KEY"] not in launcher.stderr

    def test_a_module_can_be_launched(self, launcher, tmp_path):
        package = tmp_path / "training"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "run.py").write_text("import sys; print(__name__, sys.argv[1:])")
        done = subprocess.run(
            [sys.executable, "-m", "jaxtribute.cli", "launch", *TWO, "-m", "training.run", "-n"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        assert "worker:0 | __main__ ['-n']\n" in done.stdout
        assert "worker:1 | __main__ ['-n']\n" in done.stdout


class TestProgress:
    def test_reports_are_summed_up_in_the_end(self, launcher):
        launcher.start(
            "report(phase='training', step=10 + index, total=20, metrics={'loss': 0.25})",
            options=TWO,
        )
        assert launcher.result() == 0
        assert launcher.reported()[-1].endswith(", step 10..11 of 20, loss 0.25")

    def test_what_is_no_report_is_told_once_and_does_no_harm(self, launcher):
        launcher.start("report(step='many'); report(step='more')", options=TWO)
        assert launcher.result() == 0
        said = [line for line in launcher.reported() if "ignored" in line]
        assert len(said) == 1
        assert "many" in said[0]


class TestTerminal:
    def test_shows_one_line_that_changes_and_ctrl_c_arrives_once(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            PREAMBLE
            + "\n".join(
                [
                    "def leave(*_):",
                    "    print('got it')",
                    "    sys.exit(0)",
                    "signal.signal(signal.SIGINT, leave)",
                    "report(phase='training', step=3, total=9)",
                    "print('\\x1b[31mred\\x1b[0m')",
                    "wait()",
                ]
            )
        )
        with _on_terminal("launch", *TWO, str(script)) as (process, terminal):
            red = "\x1b[31mred\x1b[0m"  # which is written after the report, and may be shown before
            told = "2 workers, training, step 3 of 9"
            seen = _read_until(terminal, lambda text: told in text and text.count(red) == 2)
            assert "\x1b[36mworker:0 | \x1b[0m" in seen  # coloured
            os.write(terminal, b"\x03")
            seen += _read_until(terminal, lambda _: False)
            assert process.wait(SECONDS) == 128 + signal.SIGINT
        assert seen.count("got it") == 2
        assert "SIGINT: passed on to 2 workers" in seen
        assert "\x1b[?25h" in seen  # the cursor is back


@contextmanager
def _on_terminal(*arguments):
    """Run the command line on a terminal of its own, which it is in control of."""
    ours, theirs = pty.openpty()
    control = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    become = "os.execv(sys.executable, [sys.executable, '-m', 'jaxtribute.cli', *sys.argv[1:]])"
    process = subprocess.Popen(
        [sys.executable, "-c", control + become, *arguments],
        env=os.environ | {"TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(terminal, condition):
    text = ""
    deadline = time.monotonic() + SECONDS
    while not condition(text):
        assert time.monotonic() < deadline, text
        try:
            text += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the other side has been closed
            break
    return text

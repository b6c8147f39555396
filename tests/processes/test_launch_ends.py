"""`jaxtribute launch` when something ends a job: failures and signals, and what comes after."""

import os
import signal
import subprocess
import sys

import pytest

from tests.processes._launcher import PREAMBLE, SECONDS, Launcher, is_alive

pytestmark = pytest.mark.processes

TWO = ("--workers", "2")
THREE = ("--workers", "3")


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


class TestFailures:
    def test_the_first_is_told_first_with_its_traceback(self, launcher):
        launcher.start(
            """
            if index == 1:
                raise ValueError("no such column")
            wait()
            """,
            options=THREE,
        )
        assert launcher.result() == 1
        first, *others = launcher.reported()
        assert first.startswith("worker:1 failed first, after ")
        assert first.endswith(" s: exit code 1, ValueError: no such column")
        assert others[0] == "  Traceback (most recent call last):"
        assert others[-3:] == [
            "  ValueError: no such column",
            "worker:0  was ended by the launcher",
            "worker:2  was ended by the launcher",
        ]

    def test_the_exit_code_is_that_of_the_first(self, launcher):
        launcher.start("sys.exit(7) if index == 0 else wait()", options=TWO)
        assert launcher.result() == 7

    def test_a_worker_that_is_killed(self, launcher):
        launcher.start("wait()", options=TWO)
        os.kill(launcher.started(2)[1], signal.SIGKILL)
        assert launcher.result() == 128 + signal.SIGKILL
        assert launcher.reported()[0].endswith(
            "killed by SIGKILL (9): often the kernel's out-of-memory killer"
        )

    def test_one_that_does_not_listen_is_killed_as_well(self, launcher):
        launcher.start(
            """
            if index == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print("deaf")
                wait()
            while not os.path.exists("go"):
                time.sleep(0.02)
            sys.exit(3)
            """,
            options=TWO,
        )
        launcher.until("deaf")
        launcher.directory.joinpath("go").touch()
        assert launcher.result() == 3
        assert launcher.reported()[-1] == (
            "worker:0  did not end when the launcher asked it to, and was killed"
        )

    def test_one_that_is_stopped_is_killed_when_another_fails(self, launcher):
        launcher.start(
            """
            if index == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            while not os.path.exists("go"):
                time.sleep(0.02)
            sys.exit(3)
            """,
            options=TWO,
        )
        stopped = launcher.started(2)[0]
        launcher.until_true(lambda: _is_stopped(stopped), "stopped")
        launcher.directory.joinpath("go").touch()
        assert launcher.result() == 3
        assert (
            launcher.reported()[-1]
            == "worker:0  was stopped (SIGSTOP), and was killed by the launcher"
        )

    def test_a_consequence_is_not_taken_for_the_cause(self, launcher):
        launcher.start(
            """
            if index == 0:
                raise WorkerLostError("Lost worker:1: the connection was closed.")
            if index == 1:
                while not os.path.exists("go"):
                    time.sleep(0.02)
                raise ValueError("the cause")
            wait()
            """,
            options=THREE,
        )
        (first, *_) = launcher.started(3)
        launcher.until_true(lambda: not is_alive(first), "was worker:0 gone")
        launcher.directory.joinpath("go").touch()
        assert launcher.result() == 1
        lines = launcher.reported()
        assert lines[0].endswith("exit code 1, ValueError: the cause")
        assert lines[-2].startswith("worker:0  a consequence, after ")
        assert "exit code 1, jaxtribute.errors.WorkerLostError: Lost worker:1" in lines[-2]
        assert lines[-1] == "worker:2  was ended by the launcher"

    def test_a_worker_that_is_stopped_is_told_to_be_the_cause(self, launcher):
        launcher.start(
            """
            if index == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            while not os.path.exists("go"):
                time.sleep(0.02)
            import jaxtribute as jt
            raise jt.errors.WorkerLostError(["worker:1"], "it has not answered for 10 s")
            """,
            options=TWO,
        )
        stopped = launcher.started(2)[1]
        launcher.until_true(lambda: _is_stopped(stopped), "stopped")
        launcher.directory.joinpath("go").touch()
        assert launcher.result() == 1
        lines = launcher.reported()
        assert lines[0].startswith("worker:0 failed first, ")
        assert "WorkerLostError: Lost worker:1" in lines[0]
        assert lines[1].startswith("  worker:1 is stopped (SIGSTOP): ")

    def test_a_failed_worker_leaves_no_processes_of_its_own(self, launcher):
        launcher.start(
            """
            if index == 0:
                # It also keeps the pipes open, which must not make anybody wait.
                helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                print("helper", helper.pid)
                sys.exit(3)
            """,
            options=TWO,
        )
        assert launcher.result() == 3
        (line,) = [line for line in launcher.stdout.splitlines() if "helper" in line]
        pid = int(line.split()[-1])
        launcher.until_true(lambda: not is_alive(pid), "was the helper gone")

    def test_workers_may_finish_in_any_order(self, launcher):
        launcher.start("time.sleep(0.3 * ((index + 1) % 3))", options=THREE)
        assert launcher.result() == 0


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_are_passed_on_once(self, launcher, number):
        launcher.start(
            """
            def leave(number, frame):
                print("got", signal.Signals(number).name)
                sys.exit(0)
            signal.signal(signal.SIGINT, leave)
            signal.signal(signal.SIGTERM, leave)
            print("ready")
            wait()
            """,
            options=[*TWO, "--max-restarts", "3"],  # which is for failures
        )
        launcher.until("ready", 2)
        launcher.send(number)
        assert launcher.result() == 128 + number
        assert launcher.stdout.count(f"got {number.name}\n") == 2
        assert launcher.stdout.count("pid") == 2
        assert launcher.reported()[0].startswith(
            f"{number.name}: passed on to 2 workers, with 30 s"
        )

    def test_workers_that_take_too_long_are_killed(self, launcher):
        launcher.start(
            """
            if index == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ready")
            wait()
            """,
            options=[*TWO, "--grace-period", "0.5"],
        )
        launcher.until("ready", 2)
        launcher.send(signal.SIGTERM)
        assert launcher.result() == 128 + signal.SIGTERM
        assert launcher.reported()[-1].startswith("killing worker:0: still running after")

    def test_a_second_one_kills_at_once(self, launcher):
        launcher.start(
            """
            signal.signal(signal.SIGINT, lambda *_: print("not yet"))
            print("ready")
            wait()
            """,
            options=[*TWO, "--grace-period", "1000"],
        )
        launcher.until("ready", 2)
        launcher.send(signal.SIGINT)
        launcher.until("not yet", 2)
        # Those that come very soon after the first count as the same.
        launcher.until_true(lambda: launcher.has_ended_after(signal.SIGINT), "ended")
        assert launcher.result() == 128 + signal.SIGINT

    def test_workers_do_not_outlive_a_launcher_that_is_killed(self, launcher):
        launcher.start("wait()", options=TWO)
        assert len(launcher.started(2)) == 2
        launcher.send(signal.SIGKILL)
        assert launcher.result() == -signal.SIGKILL  # and all workers are gone

    def test_output_that_nobody_reads_any_more_ends_the_job(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(PREAMBLE + "while True:\n    print('more')\n    time.sleep(0.01)\n")
        with subprocess.Popen(
            [sys.executable, "-m", "jaxtribute.cli", "launch", *TWO, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(SECONDS) == 128 + signal.SIGPIPE
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


class TestRestarts:
    def test_are_counted_and_have_an_end(self, launcher):
        launcher.start(
            """
            print("try", restart, os.environ["TF_CONFIG"])
            if index == 0:
                sys.exit(4 + restart)
            wait()
            """,
            options=[*TWO, "--max-restarts", "2"],
        )
        assert launcher.result() == 6
        said = launcher.reported()
        assert [line for line in said if line.startswith("restarting")] == [
            "restarting (1 of 2)",
            "restarting (2 of 2)",
        ]
        assert sum("failed first" in line for line in said) == 3
        assert said[-1] == "giving up after 2 restarts"
        told = [line for line in launcher.stdout.splitlines() if "0 | try" in line]
        assert [line.split()[3] for line in told] == ["0", "1", "2"]
        assert len({line.partition("cluster")[2] for line in told}) == 3  # new ports

    def test_end_with_success(self, launcher):
        launcher.start(
            "sys.exit(1) if restart < 1 else None", options=[*TWO, "--max-restarts", "5"]
        )
        assert launcher.result() == 0
        assert sum(line.startswith("restarting") for line in launcher.reported()) == 1


def _is_stopped(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"

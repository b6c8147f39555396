"""`jaxtribute launch --ps` when something ends a task or the job."""

import json
import os
import signal

import pytest

from tests.processes._server_jobs import ONE, TWO, ServerJob

pytestmark = pytest.mark.processes


@pytest.fixture
def job(tmp_path):
    job = ServerJob(tmp_path)
    yield job
    job.close()


class TestWorkersAndServers:
    @pytest.mark.parametrize("task", ["worker:0", "ps:0"])
    def test_one_that_is_killed_is_started_again_at_its_address(self, job, task):
        job.start_chief("until('go'); until_all_listen()", *ONE)
        killed = job.until_up()[task]
        address = json.loads(killed.environ()["TF_CONFIG"])
        killed.kill()
        job.until(f"{task} listens on", times=2)
        again = job.tasks()[task]
        assert json.loads(again.environ()["TF_CONFIG"]) == address
        assert again.environ()["JAXTRIBUTE_RESTART_COUNT"] == "1"
        job.go()
        assert job.result() == 0
        lines = job.told()
        assert lines[0].startswith(f"{task} ended after ")
        assert "killed by SIGKILL (9)" in lines[0]
        assert lines[1] == f"starting {task} again (1 of 100)"
        assert lines[-1].startswith("chief:0 finished after ")

    def test_without_restarts_the_job_goes_on_while_there_is_a_worker(self, job):
        job.start_chief("wait()", *TWO, "--max-restarts", "0")
        processes = job.until_up()
        processes["worker:1"].kill()
        job.until("worker:1 is not started again: going on without it")
        processes["worker:0"].kill()
        assert job.result() == 128 + signal.SIGKILL
        lines = [line for line in job.told() if "failed first" in line]
        assert lines[0].startswith("worker:0 failed first, after ")
        assert "chief:0   was ended by the launcher" in job.told()

    def test_without_restarts_no_server_may_be_lost(self, job):
        job.start_chief("wait()", *ONE, "--max-restarts", "0")
        job.until_up()["ps:0"].kill()
        assert job.result() == 128 + signal.SIGKILL
        assert job.told()[0].startswith("ps:0 failed first, after ")

    def test_a_server_that_was_lost_is_the_cause_of_what_follows(self, job):
        job.start_chief(
            """
            class PSUnavailableError(Exception):
                __module__ = "jaxtribute.errors"
            until("go")
            raise PSUnavailableError("The parameter server ps:0 is not available: it was restarted")
            """,
            *ONE,
        )
        job.until_up()["ps:0"].kill()
        job.until("ps:0 listens on", times=2)
        job.go()
        assert job.result() == 1  # the chief's own
        lines = job.told()[2:]
        assert lines[0].startswith("ps:0 failed first, after ")
        assert any(line.startswith("chief:0   a consequence, after ") for line in lines)

    def test_a_worker_that_failed_long_ago_is_not_the_cause(self, job):
        job.start_chief("until('go'); raise ValueError('mine')", *ONE)
        job.until_up()["worker:0"].kill()
        job.until("worker:0 listens on", times=2)
        job.go()
        assert job.result() == 1
        assert "chief:0 failed first" in job.told()[2]
        assert job.told()[2].endswith("exit code 1, ValueError: mine")


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_reach_the_chief_first_which_may_still_use_the_servers(self, job, number):
        job.start_chief(
            """
            until_all_listen()
            def leave(number, frame):
                print("got", signal.Signals(number).name, all(map(listens, cluster["ps"])))
                sys.exit(0)
            signal.signal(signal.SIGINT, leave)
            signal.signal(signal.SIGTERM, leave)
            print("ready")
            wait()
            """,
            *ONE,
        )
        job.until("ready")
        job.tasks()  # which must all be gone in the end
        job.send(number)
        assert job.result() == 128 + number
        assert f"got {number.name} True" in job.stdout
        assert job.told()[0].startswith(f"{number.name}: passed on to chief:0, with 30 s")
        assert not any("again" in line for line in job.told()[1:])

    def test_a_chief_that_does_not_end_is_killed_with_all_others(self, job):
        job.start_chief(
            """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf")
            wait()
            """,
            *ONE,
            *("--grace-period", "0.5"),
        )
        job.until_up()
        job.until("deaf")
        job.send(signal.SIGTERM)
        assert job.result() == 128 + signal.SIGTERM

    def test_nobody_outlives_a_launcher_that_is_killed(self, job):
        job.start_chief("wait()", *ONE)
        job.until_up()
        job.send(signal.SIGKILL)
        assert job.result() == -signal.SIGKILL


def test_a_server_that_is_stopped_ends_with_the_job(job):
    job.start_chief("until('go')", *ONE)
    processes = job.until_up()
    os.kill(processes["ps:0"].pid, signal.SIGSTOP)
    job.go()
    assert job.result() == 0

"""`jaxtribute launch --ps`: a chief that runs the script, and servers for as long as it does."""

import pytest

from tests.processes._server_jobs import ONE, TWO, ServerJob

pytestmark = pytest.mark.processes


@pytest.fixture
def job(tmp_path):
    job = ServerJob(tmp_path)
    yield job
    job.close()


class TestTheChief:
    def test_runs_the_script_and_ends_the_job(self, job):
        job.start_chief(
            """
            until_all_listen()
            print("I am", task["type"], index, sorted(cluster), sys.argv[1:])
            report(phase="training", step=9, total=9, metrics={"loss": 0.5})
            """,
            *TWO,
        )
        assert job.result() == 0
        (line,) = [line for line in job.stdout.splitlines() if "I am" in line]
        assert line == "chief:0  | I am chief 0 ['chief', 'ps', 'worker'] []"
        assert job.stdout.count("pid") == 1
        first, *others = job.reported()
        assert first.startswith("to watch them: jaxtribute status --cluster ")
        assert others[-1].startswith("chief:0 finished after ")
        assert others[-1].endswith(", step 9 of 9, loss 0.5")

    def test_gives_the_exit_code_and_is_told_to_have_failed_first(self, job):
        job.start_chief(
            """
            until_all_listen()
            print("all")
            until("go")
            raise SystemExit(7)
            """,
            *TWO,
        )
        job.until("all")
        processes = job.tasks()
        assert sorted(processes) == ["chief:0", "ps:0", "worker:0", "worker:1"]
        job.go()
        assert job.result() == 7
        lines = job.told()
        assert lines[0].startswith("chief:0 failed first, after ")
        assert lines[0].endswith(": exit code 7")
        assert lines[-3:] == [
            "worker:0  was ended by the launcher",
            "worker:1  was ended by the launcher",
            "ps:0      was ended by the launcher",
        ]

    def test_is_started_again_if_that_is_asked_for_while_servers_go_on(self, job):
        job.start_chief(
            """
            until_all_listen()
            print("all", restart)
            until(f"go{restart}")
            sys.exit(3 * (1 - restart))
            """,
            *ONE,
            *("--max-restarts", "1"),
        )
        job.until("all 0")
        before = job.tasks()
        job.go("go0")
        job.until("all 1")
        after = job.tasks()
        assert before["chief:0"] != after["chief:0"]
        assert before["worker:0"] == after["worker:0"]
        assert before["ps:0"] == after["ps:0"]
        job.go("go1")
        assert job.result() == 0
        lines = job.told()
        assert lines[0].startswith("chief:0 failed first")
        assert "starting chief:0 again (1 of 1)" in lines
        assert lines[-1].startswith("chief:0 finished after ")

    def test_each_task_has_a_log(self, job, tmp_path):
        job.start_chief(
            "until_all_listen(); print('done')", *ONE, "--log-dir", str(tmp_path / "logs")
        )
        assert job.result() == 0
        assert "done" in (tmp_path / "logs" / "chief-0.log").read_text()
        assert "worker:0 listens" in (tmp_path / "logs" / "worker-0.log").read_text()
        assert "ps:0 listens" in (tmp_path / "logs" / "ps-0.log").read_text()


class TestTraining:
    def test_workers_find_the_modules_beside_the_script(self, job, tmp_path):
        (tmp_path / "beside.py").write_text(
            "import json, os\n"
            "def job():\n"
            "    return json.loads(os.environ['TF_CONFIG'])['task']['type']\n"
        )
        job.start_chief(
            """
            import beside
            import jaxtribute as jt

            resolver = jt.cluster_resolver.TFConfigClusterResolver()
            strategy = jt.experimental.ParameterServerStrategy(resolver)
            coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
            with strategy.scope():
                counter = jt.Variable(0.0)

            def step():
                counter.assign_add(1.0)
                return beside.job()

            jobs = [coordinator.schedule(step) for _ in range(20)]
            coordinator.join()
            jt.train.report_progress(20, total=20)
            print("counted", int(counter.numpy()), {job.fetch() for job in jobs})
            """,
            *TWO,
        )
        assert job.result() == 0
        assert "chief:0  | counted 20 {'worker'}" in job.stdout
        assert job.told()[-1].endswith(", step 20 of 20")

    def test_a_worker_that_is_killed_costs_no_update(self, job):
        job.start_chief(
            """
            import jaxtribute as jt

            resolver = jt.cluster_resolver.TFConfigClusterResolver()
            strategy = jt.experimental.ParameterServerStrategy(resolver)
            coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
            with strategy.scope():
                counter = jt.Variable(0.0)

            scheduled = 0
            while not os.path.exists("go"):
                for _ in range(10):
                    coordinator.schedule(lambda: counter.assign_add(1.0))
                scheduled += 10
                coordinator.join()
                print("round")
            print("exact" if counter.numpy() == scheduled else "wrong")
            """,
            *ONE,
        )
        job.until("round")
        job.tasks()["worker:0"].kill()
        job.until("worker:0 listens on", times=2)
        rounds = job.stdout.count("round")
        job.until("round", times=rounds + 2)
        job.go()
        assert job.result() == 0
        assert "exact" in job.stdout

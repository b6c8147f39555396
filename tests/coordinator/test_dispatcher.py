"""What the coordinator tells its workers, and what it makes of what they tell."""

import gc

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator._messages import (
    Adopt,
    Beat,
    Built,
    Forget,
    Need,
    Pulse,
    Ready,
    Recall,
    Run,
)
from jaxtribute.coordinator._per_worker import PerWorkerValues, Resources
from jaxtribute.coordinator._queue import STRIKES

from ._dispatching import ORIGIN, Rig

errors = jt.errors


@pytest.fixture
def rig():
    rig = Rig()
    rig.join_cluster(0, 1)
    return rig


class TestGivingOut:
    def test_a_worker_is_adopted_before_anything_else(self):
        rig = Rig(workers=2, servers=1)
        rig.schedule()
        rig.dispatcher.up("worker:1", "x")
        assert [body for task, body, _ in rig.posted] == [Adopt(ORIGIN, 1, 2, ["p0:1"])]
        rig.say(1, Ready(ORIGIN, 1))
        assert rig.given(1) == [0]

    def test_closures_go_to_all_workers(self, rig):
        values = [rig.schedule() for _ in range(4)]
        assert (rig.given(0), rig.given(1)) == ([0, 2], [1, 3])
        assert len(values) == 4

    def test_closures_wait_while_no_worker_has_room(self, rig):
        for _ in range(10):
            rig.schedule()
        assert len(rig.works()) == 4
        rig.end(0, 0, 2, seconds=1.0)
        assert len(rig.works()) == 6

    def test_messages_that_have_arrived_together_are_followed_by_one_look_at_all_workers(self, rig):
        for _ in range(10):
            rig.schedule()
        with rig.arriving_together():
            rig.end(0, 0, 2, seconds=1.0)
            rig.end(1, 1, 3, seconds=1.0)
            assert len(rig.works()) == 4
        assert (rig.given(0)[2:], rig.given(1)[2:]) == ([4, 5], [6, 7])

    def test_short_closures_go_out_many_at_a_time(self, rig):
        for _ in range(500):
            rig.schedule()
        rig.end(0, 0, seconds=1e-5)
        rig.end(0, *rig.given(0)[1:], seconds=1e-5)
        runs = rig.sent(Run, 0)
        assert len(runs[-1].works) == 64

    def test_a_function_is_sent_to_each_worker_once(self, rig):
        function = jt.function(lambda: None)
        for _ in range(4):
            rig.schedule(function)
        digest = rig.packer.function(function).blob.digest
        assert (rig.blobs(0), rig.blobs(1)) == ([digest], [digest])

    def test_what_a_worker_lacks_is_sent_again(self, rig):
        function = jt.function(lambda: None)
        rig.schedule(function)
        digest = rig.packer.function(function).blob.digest
        rig.say(0, Need(ORIGIN, [digest, "unknown"]))
        assert rig.blobs(0) == [digest, digest]

    def test_a_new_process_is_told_everything_again(self, rig):
        function = jt.function(lambda: None)
        resources = Resources(rig.packer, rig.dispatcher)
        value = PerWorkerValues(resources, lambda: 1)
        for incarnation in ("1", "2"):
            rig.join_cluster(0, 1, incarnation=incarnation)
            for _ in range(2):
                rig.schedule(function, value)
            for index in (0, 1):
                rig.end(index, *rig.given(index)[-1:])
        digest = rig.packer.function(function).blob.digest
        for index in (0, 1):
            assert rig.blobs(index).count(digest) == 2
            assert rig.built(index) == [value.number] * 2

    def test_a_process_that_returns_keeps_what_it_has_made(self, rig):
        resources = Resources(rig.packer, rig.dispatcher)
        value = PerWorkerValues(resources, lambda: 1)
        unused = PerWorkerValues(resources, lambda: 1)
        rig.schedule(lambda x: x, value)
        rig.end(0, 0)
        rig.dispatcher.down("worker:1", "cut")
        rig.schedule(lambda x: x, unused)
        rig.dispatcher.down("worker:0", "cut")
        rig.join_cluster(0)  # the message about `unused` may have been lost
        rig.schedule(lambda x, y: x, value, unused)
        rig.end(0, *rig.given(0)[-1:])
        rig.end(0, *rig.given(0)[-1:])
        assert rig.built(0) == [value.number, unused.number, unused.number]

    def test_resources_are_forgotten_with_their_last_reference(self, rig):
        value = PerWorkerValues(Resources(rig.packer, rig.dispatcher), lambda: 1)
        number = value.number
        rig.schedule(lambda x: x, value)
        del value
        gc.collect()
        rig.pass_time(0.5, beating=(0, 1))
        assert rig.sent(Forget) == []  # a closure still needs it
        rig.end(0, 0)
        gc.collect()
        rig.pass_time(0.5, beating=(0, 1))
        assert rig.sent(Forget) == [Forget([number])]

    def test_work_tells_the_epoch_in_which_it_was_scheduled(self, rig):
        first = rig.schedule()
        rig.end(0, 0)
        first.fetch()
        rig.schedule()
        rig.end(rig.holder(1), 1)
        rig.closures.join()
        rig.schedule()
        epochs = [work.epoch for work in rig.works()]
        assert epochs == sorted(set(epochs))

    def test_workers_are_told_what_is_settled(self, rig):
        for _ in range(6):
            rig.schedule()
        rig.end(0, 0, 2)
        assert [run.settled for run in rig.sent(Run)][-1] == 1

    def test_idle_workers_get_what_others_have_not_begun(self, rig):
        for _ in range(4):
            rig.schedule()
        rig.end(1, 1, 3)
        rig.pass_time(1, beating=(0, 1))
        assert rig.sent(Recall, 0) == [Recall(1)] * len(rig.sent(Recall, 0))
        rig.end(0, 2, status="returned")
        assert rig.given(1) == [1, 3, 2]

    def test_workers_are_told_how_the_coordinator_is(self, rig):
        rig.schedule()
        rig.pass_time(3, beating=(0, 1))
        assert rig.sent(Pulse, 0)[-1] == Pulse(0, 1, 0)

    def test_optimizers_that_workers_have_built_are_reported(self):
        built = []
        rig = Rig(built=lambda *what: built.append(what))
        rig.join_cluster(0)
        rig.say(0, Built(ORIGIN, 3, [[1, 2]]))
        assert built == [(3, [[1, 2]])]

    def test_what_belongs_to_another_life_of_the_coordinator_is_ignored(self, rig):
        rig.schedule()
        digest = rig.works()[0].function
        rig.say(0, Need("another life", [digest]))
        assert rig.blobs(0) == [digest]

    def test_workers_may_start_one_after_the_other(self, monkeypatch):
        monkeypatch.setenv("TF_COORDINATOR_SCHEDULE_START_DELAY", "10")
        monkeypatch.setenv("TF_COORDINATOR_SCHEDULE_START_DELAY_MAX", "15")
        rig = Rig(workers=3)
        rig.join_cluster(0, 1, 2)
        for _ in range(10):
            rig.schedule()
        began = []
        for _ in range(20):
            rig.pass_time(1, beating=(0, 1, 2))
            began.append([bool(rig.given(i)) for i in range(3)])
        assert began[0] == [True, False, False]
        assert [state.index(True) for state in zip(*began, strict=True)] == [0, 9, 14]


class TestResultsAndWaits:
    def test_a_result_is_fetched_with_numpys_types(self, rig):
        value = rig.schedule(lambda: {"x": jnp.float32(1)})
        rig.end(0, 0, value={"x": jnp.float32(1), "y": jnp.arange(2)})
        fetched = value.fetch()
        assert isinstance(fetched["x"], np.float32)
        assert isinstance(fetched["y"], np.ndarray)

    def test_get_returns_arrays_of_jax(self, rig):
        value = rig.schedule()
        rig.end(0, 0, value=[jnp.arange(2), np.float32(3), "text"])
        array, number, text = value.get()
        assert isinstance(array, type(jnp.zeros(1)))
        assert isinstance(number, type(jnp.zeros(1)))
        assert text == "text"

    def test_a_result_nobody_holds_is_not_sent(self):
        rig = Rig()
        kept = rig.schedule()
        rig.schedule()
        rig.join_cluster(0)
        assert [work.wants_result for work in rig.works()] == [True, False]
        assert kept is not None

    def test_a_result_is_kept_after_its_worker_is_lost(self, rig):
        value = rig.schedule()
        rig.end(0, 0, value=5)
        rig.dispatcher.down("worker:0", "killed")
        assert [value.fetch(), value.fetch(), value.get()] == [5, 5, 5]

    def test_results_that_wait_are_bounded(self):
        rig = Rig(workers=1, result_bytes=1000)
        rig.join_cluster(0)
        array = np.zeros(100, np.uint8)
        values = [rig.schedule() for _ in range(6)]
        for number in range(6):
            rig.end(0, number, value=array)
        with pytest.raises(errors.ResourceExhaustedError, match="1000 bytes"):
            values[-1].fetch()
        assert len(values[0].fetch()) == 100

    def test_fetching_and_dropping_make_room_for_other_results(self):
        rig = Rig(workers=1, result_bytes=400)
        rig.join_cluster(0)
        for number in range(10):
            value = rig.schedule()
            rig.end(0, number, value=np.zeros(200, np.uint8))
            if number % 2:
                assert len(value.fetch()) == 200

    def test_done_tells_whether_everything_has_run(self, rig):
        assert rig.closures.done()
        rig.schedule()
        assert not rig.closures.done()
        rig.end(0, 0)
        assert rig.closures.done()

    def test_an_idle_join_returns_at_once(self, rig):
        rig.closures.join()
        rig.closures.join()

    def test_waiting_for_workers_ends_with_who_is_missing(self):
        rig = Rig(workers=2)
        with pytest.raises(errors.DeadlineExceededError, match=r"worker:0 .*worker:1 "):
            rig.dispatcher.wait_for_a_worker(0.01)
        rig.join_cluster(1)
        rig.dispatcher.wait_for_a_worker(0.01)


class TestErrors:
    def test_the_error_is_raised_once_and_the_rest_is_cancelled(self, rig):
        values = [rig.schedule() for _ in range(8)]
        rig.end(0, 0, value=7)
        rig.end(1, 1, status="failed", error=ZeroDivisionError("bad"))
        for index in (0, 1):
            rig.end(index, *rig.cancelled(index), status="cancelled")
        with pytest.raises(ZeroDivisionError, match="bad"):
            rig.closures.join()
        rig.closures.join()
        assert values[0].fetch() == 7
        with pytest.raises(ZeroDivisionError):
            values[1].fetch()
        for value in values[2:]:
            with pytest.raises(errors.CancelledError):
                value.fetch()

    @pytest.mark.parametrize("call", ["schedule", "join", "done"])
    def test_each_call_raises_and_clears_the_error(self, rig, call):
        rig.schedule()
        rig.end(0, 0, status="failed", error=ValueError("bad"))
        method = rig.schedule if call == "schedule" else getattr(rig.closures, call)
        with pytest.raises(ValueError, match="bad"):
            method()
        method()
        assert len(rig.works()) == (2 if call == "schedule" else 1)

    def test_what_is_in_flight_is_cancelled_and_what_ends_all_the_same_counts(self, rig):
        values = [rig.schedule() for _ in range(4)]
        rig.end(0, 0, status="failed", error=ValueError("first"))
        assert (rig.cancelled(0), rig.cancelled(1)) == ([2], [1, 3])
        rig.end(1, 1, value="in time")
        rig.end(1, 3, status="failed", error=ValueError("second"))
        rig.end(0, 2, status="cancelled")
        with pytest.raises(ValueError, match="first"):
            rig.closures.join()
        rig.closures.join()
        assert values[1].fetch() == "in time"
        with pytest.raises(ValueError, match="second"):
            values[3].fetch()
        with pytest.raises(errors.CancelledError):
            values[2].fetch()

    def test_closures_of_a_worker_lost_after_an_error_are_cancelled(self, rig):
        values = [rig.schedule() for _ in range(2)]
        rig.end(1, 1, status="failed", error=ValueError("bad"))
        rig.dispatcher.down("worker:0", "killed")
        with pytest.raises(ValueError, match="bad"):
            rig.closures.join()
        with pytest.raises(errors.CancelledError):
            values[0].fetch()

    def test_what_a_function_lacks_is_an_error_of_its_own(self, rig):
        value = rig.schedule()
        rig.end(0, 0, status="input_failed", error=OSError("no such file"))
        for call in (rig.closures.join, value.fetch):
            with pytest.raises(errors.ClosureInputError, match="OSError: no such file") as caught:
                call()
            assert isinstance(caught.value.__cause__, OSError)

    def test_fetching_does_not_clear_the_error(self, rig):
        value = rig.schedule()
        rig.end(0, 0, status="failed", error=ValueError("bad"))
        with pytest.raises(ValueError, match="bad"):
            value.fetch()
        with pytest.raises(ValueError, match="bad"):
            rig.closures.done()

    def test_closing_cancels_what_has_not_run(self, rig):
        values = [rig.schedule() for _ in range(6)]
        rig.closures.close()
        for value in values:
            with pytest.raises(errors.CancelledError, match="closed"):
                value.fetch()
        with pytest.raises(errors.FailedPreconditionError, match="closed"):
            rig.schedule()


class TestLostWorkers:
    def test_closures_of_a_lost_worker_run_elsewhere(self, rig):
        values = [rig.schedule() for _ in range(4)]
        rig.dispatcher.down("worker:0", "killed")
        rig.end(1, 1, 3)
        while 0 not in rig.given(1):
            rig.end(1, rig.given(1)[-1], value="again")
        rig.end(1, 0, value="again")
        rig.end(1, 2, value="again")
        rig.closures.join()
        assert values[0].fetch() == values[2].fetch() == "again"

    def test_a_silent_worker_is_lost_and_adopted_again_when_it_speaks(self, rig):
        value = rig.schedule()
        rig.pass_time(11, beating=(1,))
        assert rig.given(1) == [0]
        rig.say(0, Beat(0, 0, 0))
        assert rig.adoptions(0) == 2
        rig.end(0, 0, value="late")
        assert value.fetch() == "late"
        rig.end(1, 0, value="twice")
        assert value.fetch() == "late"
        assert rig.closures.done()

    def test_a_returning_worker_takes_part_again(self, rig):
        rig.dispatcher.down("worker:0", "killed")
        rig.join_cluster(0, incarnation="2")
        rig.dispatcher.down("worker:1", "killed")
        rig.schedule()
        assert rig.given(0) == [0]

    def test_a_closure_that_ends_its_workers_is_reported(self, rig):
        def deadly():
            return None

        value = rig.schedule(deadly)
        for life in range(STRIKES):
            index = rig.holder(0)
            rig.dispatcher.down(f"worker:{index}", "killed")
            rig.join_cluster(index, incarnation=str(life + 2))
        with pytest.raises(
            errors.ClosureAbortedError, match=rf"deadly.*{STRIKES} workers were lost"
        ):
            rig.closures.join()
        with pytest.raises(errors.ClosureAbortedError):
            value.fetch()
        rig.schedule()
        rig.end(rig.holder(1), 1)
        rig.closures.join()

    def test_losses_are_printed(self, rig, capsys):
        rig.schedule()
        rig.dispatcher.down("worker:0", "its process ended")
        text = capsys.readouterr().err
        assert "worker:0 is lost: its process ended. 1 closures go to other workers" in text


class TestLostServers:
    def lost(self, rig, number):
        index = rig.holder(number)
        error = errors.PSUnavailableError("ps:0", "cut")
        rig.end(index, number, status="server_lost", error=error)

    def test_the_first_failures_are_overlooked(self, rig):
        value = rig.schedule()
        self.lost(rig, 0)
        self.lost(rig, 0)
        assert len(rig.works()) == 3
        self.lost(rig, 0)
        with pytest.raises(errors.PSUnavailableError, match="ps:0"):
            rig.closures.join()
        with pytest.raises(errors.PSUnavailableError):
            value.fetch()

    def test_nothing_is_given_out_while_a_server_is_away(self, rig):
        rig.dispatcher.down("ps:0", "cut")
        rig.schedule()
        assert rig.works() == []
        rig.dispatcher.up("ps:0", "ps 0")
        assert len(rig.works()) == 1

    @pytest.mark.parametrize("call", ["schedule", "join", "done"])
    def test_a_server_that_stays_away_is_fatal(self, rig, call):
        value = rig.schedule()
        rig.dispatcher.down("ps:0", "cut")
        rig.pass_time(11, beating=(0, 1))
        method = rig.schedule if call == "schedule" else getattr(rig.closures, call)
        for _ in range(2):
            with pytest.raises(errors.PSUnavailableError, match=r"ps:0.*cut"):
                method()
        rig.end(0, 0, status="cancelled")
        with pytest.raises(errors.CancelledError):
            value.fetch()

    @pytest.mark.parametrize("status", ["server_lost", "failed", "lost worker"])
    def test_what_ran_when_a_server_was_lost_ends_however_it_comes_back(self, rig, status):
        value = rig.schedule()
        index = rig.holder(0)
        rig.dispatcher.down("ps:0", "cut")
        rig.pass_time(11, beating=(0, 1))
        with pytest.raises(errors.PSUnavailableError):
            rig.closures.join()
        if status == "lost worker":
            rig.dispatcher.down(f"worker:{index}", "killed")
        else:
            rig.end(index, 0, status=status, error=errors.PSUnavailableError("ps:0", "cut"))
        with pytest.raises((errors.CancelledError, errors.PSUnavailableError)):
            value.fetch()
        rig.dispatcher.up("ps:0", "ps 0")
        assert rig.closures.done()  # the error has been raised already

    def test_a_server_that_returns_with_its_variables_was_only_away(self, rig):
        rig.dispatcher.down("ps:0", "cut")
        rig.pass_time(11, beating=(0, 1))
        rig.dispatcher.up("ps:0", "ps 0")
        rig.closures.queue.raise_error()
        rig.schedule()
        assert len(rig.works()) == 1

    def test_a_server_that_was_restarted_is_fatal(self, rig):
        rig.dispatcher.down("ps:0", "killed")
        rig.dispatcher.up("ps:0", "another")
        with pytest.raises(errors.PSUnavailableError, match="lost its variables"):
            rig.schedule()


class TestRestoring:
    @pytest.fixture
    def restored(self):
        return []

    @pytest.fixture
    def rig(self, restored):
        rig = Rig(restore=restored.append, patience=100.0)
        rig.join_cluster(0, 1)
        return rig

    def test_closures_wait_until_the_server_is_restored(self, rig, restored, capsys):
        rig.schedule()
        rig.dispatcher.down("ps:0", "killed")
        rig.end(0, 0, status="server_lost", error=errors.PSUnavailableError("ps:0", "killed"))
        rig.pass_time(50, beating=(0, 1))
        rig.dispatcher.up("ps:0", "another")
        assert restored == ["ps:0"]
        assert len(rig.works()) == 1
        rig.pass_time(3, beating=(0, 1))
        rig.dispatcher.restored("ps:0", 12)
        assert len(rig.works()) == 2
        assert "12 updates were lost" in capsys.readouterr().err

    def test_a_closure_that_alone_misses_the_server_is_tried_again_later(self, rig):
        rig.schedule()
        rig.end(0, 0, status="server_lost", error=errors.PSUnavailableError("ps:0", "cut"))
        assert len(rig.works()) == 1
        rig.pass_time(3, beating=(0, 1))
        assert len(rig.works()) == 2

    def test_a_server_that_stays_away_is_fatal_in_the_end(self, rig):
        rig.dispatcher.down("ps:0", "killed")
        rig.pass_time(101, beating=(0, 1))
        with pytest.raises(errors.PSUnavailableError):
            rig.closures.join()

    def test_a_server_that_cannot_be_restored_is_fatal(self, rig):
        rig.dispatcher.down("ps:0", "killed")
        rig.dispatcher.up("ps:0", "another")
        rig.dispatcher.restored("ps:0", 0, "it has no snapshot")
        with pytest.raises(errors.PSUnavailableError, match="it has no snapshot"):
            rig.schedule()

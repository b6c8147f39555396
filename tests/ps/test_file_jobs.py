"""What parameter servers do with files beside answering requests."""

import gc
import threading
import weakref

import numpy as np
import pytest

from jaxtribute._array_files import DamagedArray
from jaxtribute.errors import FailedPreconditionError
from jaxtribute.ps._file_jobs import FileJobs
from jaxtribute.ps._messages import Files


@pytest.fixture
def jobs():
    jobs = FileJobs()
    yield jobs
    jobs.close()


def test_a_result_is_let_go_when_it_is_forgotten(jobs):
    jobs.begin("load", lambda: np.ones(3))
    jobs.close()
    result = weakref.ref(jobs.result("load"))
    assert result() is not None
    jobs.forget("load")
    assert result() is None


def test_values_that_could_not_be_written_are_let_go(jobs):
    def failing(value):
        def work():
            raise OSError(f"no room for {value}")

        return work

    value = np.ones(3)
    kept = weakref.ref(value)
    jobs.begin("save", failing(value))
    del value
    jobs.close()
    gc.collect()
    assert kept() is None
    assert jobs.ask("save") == Files(True, "OSError: no room for [1. 1. 1.]")
    with pytest.raises(FailedPreconditionError, match="not done, or has failed"):
        jobs.result("save")


def test_closing_waits_for_all_also_for_what_was_forgotten(jobs):
    may_end = threading.Event()
    ended = []
    for name in ("first", "second"):
        jobs.begin(name, lambda name=name: (may_end.wait(60), ended.append(name)))
    assert jobs.ask("second") == Files(False, None)
    jobs.forget("second")
    may_end.set()
    jobs.close()
    assert sorted(ended) == ["first", "second"]


def test_damage_is_told_from_other_failures(jobs):
    def damaged():
        raise DamagedArray("'w' cannot be read")

    jobs.begin("load", damaged)
    jobs.close()
    assert jobs.ask("load") == Files(True, "'w' cannot be read", is_damage=True)


def test_each_job_is_known_however_many_follow(jobs):
    may_end = threading.Event()
    jobs.begin("first", lambda: may_end.wait(60))
    for number in range(200):
        jobs.begin(f"job {number}", lambda: None)
    assert jobs.ask("first") == Files(False, None)
    may_end.set()
    jobs.close()
    assert jobs.ask("first") == jobs.ask("job 199") == Files(True, None)


def test_a_job_that_another_process_began_is_lost(jobs):
    assert jobs.ask("unknown").is_lost
    assert jobs.ask("unknown").is_done

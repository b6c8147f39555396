"""Failures of replicas that could make a program stand still, each in a program of its own."""

import pytest

pytestmark = pytest.mark.processes

PRELUDE = """
        import threading
        import jax.numpy as jnp
        import jaxtribute as jt
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

        def context():
            return jt.get_replica_context()

        def must_raise(error, fn):
            try:
                strategy.run(fn)
            except error as raised:
                print(type(raised).__name__, raised)
            else:
                raise AssertionError("nothing was raised")
            assert threading.active_count() == 1, threading.enumerate()
            total = strategy.run(lambda: context().all_reduce("SUM", jnp.ones(())))
            assert [float(x) for x in total.values] == [2.0, 2.0]
        """


def test_a_replica_that_cleans_up_with_a_collective(python):
    python(
        PRELUDE
        + """
        def replica_fn():
            if context().replica_id_in_sync_group == 1:
                raise KeyError("mine")
            try:
                context().all_reduce("SUM", jnp.ones(()))
            finally:
                context().all_reduce("SUM", jnp.ones(()))  # nobody will come

        must_raise(KeyError, replica_fn)
        """
    )


def test_a_replica_that_catches_everything_and_tries_again(python):
    python(
        PRELUDE
        + """
        def replica_fn():
            if context().replica_id_in_sync_group == 1:
                raise KeyError("mine")
            for _ in range(3):
                try:
                    context().all_reduce("SUM", jnp.ones(()))
                except BaseException:
                    pass

        must_raise(KeyError, replica_fn)
        """
    )


def test_a_merge_function_that_fails_while_replicas_clean_up(python):
    python(
        PRELUDE
        + """
        def merge_fn(strategy):
            raise KeyError("merging")

        def replica_fn():
            try:
                context().merge_call(merge_fn)
            finally:
                context().merge_call(lambda strategy: None)

        must_raise(KeyError, replica_fn)
        """
    )


def test_a_replica_that_fails_while_it_is_stopped(python):
    output = python(
        PRELUDE
        + """
        def replica_fn():
            if context().replica_id_in_sync_group == 1:
                raise KeyError("the first error")
            try:
                context().all_reduce("SUM", jnp.ones(()))
            finally:
                raise ValueError("while cleaning up")

        must_raise(KeyError, replica_fn)
        """
    )
    assert "the first error" in output


def test_ctrl_c_stops_the_replicas(python):
    """The signal reaches the main thread, which waits for a replica."""
    python(
        PRELUDE
        + """
        import os, signal

        def replica_fn():
            if context().replica_id_in_sync_group == 1:
                os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                context().all_reduce("SUM", jnp.ones(()))
            went_on.append(None)

        went_on = []
        try:
            strategy.run(replica_fn)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the signal was lost")
        for thread in threading.enumerate():  # one that was running ends where it next waits
            if thread is not threading.main_thread():
                thread.join()
        assert not went_on
        assert not jt.has_strategy()
        total = strategy.run(lambda: context().all_reduce("SUM", jnp.ones(())))
        assert [float(x) for x in total.values] == [2.0, 2.0]
        """
    )


def test_a_program_may_end_inside_a_replica(python):
    python(
        PRELUDE
        + """
        import sys

        def replica_fn():
            context().all_reduce("SUM", jnp.ones(()))
            sys.exit(0)

        strategy.run(replica_fn)
        raise AssertionError("not reached")
        """
    )


def test_replicas_in_many_threads_at_once(python):
    python(
        PRELUDE
        + """
        results = []

        def main(i):
            for _ in range(5):
                total = strategy.run(lambda: context().all_reduce("SUM", jnp.float32(i)))
                results.append([float(x) for x in total.values] == [2.0 * i] * 2)

        threads = [threading.Thread(target=main, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 40, results
        """
    )


def test_compiled_steps_in_many_threads_at_once(python):
    python(
        PRELUDE
        + """
        results = []
        step = jt.function(lambda x: context().all_reduce("SUM", x))

        def main(i):
            for _ in range(25):
                total = strategy.run(step, args=(jnp.float32(i),))
                results.append([float(x) for x in total.values] == [2.0 * i] * 2)

        threads = [threading.Thread(target=main, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 100, results
        """
    )

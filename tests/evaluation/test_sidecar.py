"""What an evaluator does with checkpoints that come, go and are damaged."""

import itertools
import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import optax
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.evaluation import _evaluator
from jaxtribute.evaluation._ending import Ending

TRAINED = np.arange(12, dtype=np.float32).reshape(6, 2)


def program(fill=0.0):
    return jt.train.Checkpoint(model={"w": jt.Variable(np.full((6, 2), fill, np.float32))})


def evaluator(directory, checkpoint=None, evaluate=None, **options):
    """Return one that tells the sum of what it restored, and does not wait for more."""
    checkpoint = checkpoint or program()
    total = evaluate or (lambda: {"sum": checkpoint.model["w"].numpy().sum()})
    options = {"timeout": 0, "poll_seconds": 0.01} | options
    return jt.train.SidecarEvaluator(checkpoint, total, directory, **options)


def save(directory, value, number=None, **more):
    """Save as training would, and return the path of the complete checkpoint."""
    checkpoint = jt.train.Checkpoint(model={"w": jt.Variable(np.full((6, 2), value, np.float32))})
    for name, each in more.items():
        setattr(checkpoint, name, each)
    manager = jt.train.CheckpointManager(checkpoint, directory)
    manager.save(checkpoint_number=number)
    return jt.train.latest_checkpoint(directory)


def sums(results):
    return [(os.path.basename(r["checkpoint"]), r["metrics"]["sum"]) for r in results]


def damage(checkpoint):
    """Change bytes in every file of the contents."""
    for file in Path(checkpoint).glob("data-*/**/*"):
        if file.is_file():
            content = bytearray(file.read_bytes())
            middle = len(content) // 2
            content[middle : middle + 8] = bytes(
                255 - byte for byte in content[middle : middle + 8]
            )
            file.write_bytes(content)


class TestChoice:
    def test_the_newest_is_evaluated_and_older_ones_are_not(self, tmp_path, capsys):
        for number in (1, 2, 3):
            save(tmp_path, number, number)
        results = evaluator(tmp_path).start()
        assert sums(results) == [("ckpt-3", 36.0)]
        assert "evaluated ckpt-3 at step 3: sum 36 (" in capsys.readouterr().out

    def test_all_are_evaluated_in_their_order_if_asked(self, tmp_path):
        for number in (3, 1, 2):
            save(tmp_path, number, number)
        results = evaluator(tmp_path, evaluate_all=True).start()
        assert sums(results) == [("ckpt-3", 36.0), ("ckpt-1", 12.0), ("ckpt-2", 24.0)]

    def test_one_that_comes_meanwhile_is_next(self, tmp_path):
        save(tmp_path, 1, 1)
        checkpoint, coming = program(), iter((2, 3, 4))

        def evaluate():
            found = checkpoint.model["w"].numpy().sum()
            for number in (*[next(coming, None)], next(coming, None)):
                if number is not None:
                    save(tmp_path, number, number)
            return {"sum": found}

        results = evaluator(tmp_path, checkpoint, evaluate).start()
        assert sums(results) == [("ckpt-1", 12.0), ("ckpt-3", 36.0), ("ckpt-4", 48.0)]

    def test_what_is_saved_to_the_same_path_again_is_new(self, tmp_path):
        save(tmp_path, 1, 5)
        first = evaluator(tmp_path).start()
        save(tmp_path, 2, 5)  # as training does that went back to an earlier checkpoint
        second = evaluator(tmp_path).start()
        assert sums(first + second) == [("ckpt-5", 12.0), ("ckpt-5", 24.0)]

    def test_nothing_is_evaluated_twice(self, tmp_path):
        for number in (1, 2):
            save(tmp_path, number, number)
        assert len(evaluator(tmp_path, evaluate_all=True).start()) == 2
        save(tmp_path, 3, 3)
        assert sums(evaluator(tmp_path, evaluate_all=True).start()) == [("ckpt-3", 36.0)]


class TestSteps:
    def test_the_count_of_an_optimizer_that_is_not_restored_here(self, tmp_path):
        w = jt.Variable(TRAINED)
        optimizer = jt.Optimizer(optax.sgd(0.0))
        for _ in range(3):
            optimizer.apply_gradients([(np.ones_like(TRAINED), w)])
        jt.train.Checkpoint(model={"w": w}, adam=optimizer, step=8).save(tmp_path / "ckpt")
        jt.train.latest_checkpoint(tmp_path)
        (result,) = evaluator(tmp_path).start()
        assert (result["step"], result["metrics"]) == (3, {"sum": 66.0})

    @pytest.mark.parametrize("step", [41, np.int32(41), jt.Variable(41)])
    def test_something_called_step(self, tmp_path, step):
        save(tmp_path, 1, 7, step=step)
        assert evaluator(tmp_path).start()[0]["step"] == 41

    def test_the_number_in_the_name(self, tmp_path):
        save(tmp_path, 1, 70)
        assert evaluator(tmp_path).start()[0]["step"] == 70

    def test_a_counter_of_the_program(self, tmp_path):
        counter = jt.Variable(90)
        save(tmp_path, 1, 7, step=5, examples=counter)
        counter = jt.Variable(0)
        checkpoint = program()
        checkpoint.examples = counter
        given = evaluator(tmp_path, checkpoint, step_counter=counter, log_dir=tmp_path / "a")
        called = evaluator(
            tmp_path, checkpoint, step_counter=lambda: int(counter) * 2, log_dir=tmp_path / "b"
        )
        assert [e.start()[0]["step"] for e in (given, called)] == [90, 180]


class TestEnds:
    def test_after_so_many_evaluations_with_those_of_earlier_lives(self, tmp_path, capsys):
        for number in (1, 2, 3):
            save(tmp_path, number, number)
        limited = evaluator(tmp_path, evaluate_all=True, max_evaluations=2, timeout=None)
        assert len(limited.start()) == 2
        assert limited.start() == []
        assert "max_evaluations=2 is reached" in capsys.readouterr().out

    def test_with_the_last_step(self, tmp_path, capsys):
        for number in (10, 20, 30):
            save(tmp_path, number, number)
        ends = evaluator(tmp_path, evaluate_all=True, last_step=20, timeout=None)
        assert [r["step"] for r in ends.start()] == [10, 20]
        assert "last_step=20 is reached" in capsys.readouterr().out

    def test_after_silence(self, tmp_path, capsys):
        assert evaluator(tmp_path / "later", timeout=0.02).start() == []
        assert "no new checkpoint for 0.02 s; results: 0, in " in capsys.readouterr().out

    def test_sigterm_while_evaluating_lets_the_newest_be_evaluated(self, tmp_path, capsys):
        save(tmp_path, 1, 1)
        checkpoint = program()
        before = signal.getsignal(signal.SIGTERM)

        def evaluate():
            found = checkpoint.model["w"].numpy().sum()
            if found == 12:
                os.kill(os.getpid(), signal.SIGTERM)
                save(tmp_path, 2, 2)
            return {"sum": found}

        results = evaluator(tmp_path, checkpoint, evaluate, timeout=None).start()
        assert sums(results) == [("ckpt-1", 12.0), ("ckpt-2", 24.0)]
        assert "training is over" in capsys.readouterr().out
        assert signal.getsignal(signal.SIGTERM) is before

    def test_the_launcher_says_so_with_a_file(self, tmp_path, monkeypatch):
        ended = tmp_path / "ended"
        monkeypatch.setenv("JAXTRIBUTE_TRAINING_ENDED", str(ended))
        with Ending() as ending:
            assert not ending.has_come
            ended.touch()
            assert ending.has_come

    def test_a_signal_may_come_at_any_moment_of_a_wait(self):
        def wait(moment):
            """Wait with a signal at one of its lines; tell whether it has that many."""
            lines = 0

            def trace(frame, event, arg):
                nonlocal lines
                if lines == moment:
                    signal.raise_signal(signal.SIGTERM)
                lines += 1
                return trace

            before = sys.gettrace()
            with Ending() as ending:
                sys.settrace(trace)
                try:
                    ending.wait(0.001)
                finally:
                    sys.settrace(before)
                assert ending.has_come == (lines > moment)
                return ending.has_come

        moments = itertools.count()
        assert all(wait(next(moments)) for _ in range(3))
        while wait(next(moments)):
            pass

    def test_signals_are_left_alone_in_another_thread(self, tmp_path):
        save(tmp_path, 1, 1)
        found = []
        thread = threading.Thread(target=lambda: found.extend(evaluator(tmp_path).start()))
        thread.start()
        thread.join()
        assert sums(found) == [("ckpt-1", 12.0)]


class TestTrouble:
    def test_a_damaged_checkpoint_is_reported_and_others_are_evaluated(self, tmp_path, capsys):
        for number in (1, 2, 3):
            save(tmp_path, number, number)
        damage(tmp_path / "ckpt-2")
        results = evaluator(tmp_path, evaluate_all=True).start()
        assert sums(results) == [("ckpt-1", 12.0), ("ckpt-3", 36.0)]
        printed = capsys.readouterr().out
        assert printed.count("skipped ckpt-2, which cannot be read: ") == 1

    def test_one_that_is_deleted_before_it_is_restored_is_skipped(self, tmp_path, capsys):
        save(tmp_path, 1, 1)
        checkpoint = program()
        own = type(checkpoint).read

        class Slow(jt.train.Checkpoint):
            def read(self, save_path, options=None):
                if save_path.endswith("ckpt-1"):  # the manager makes room just now
                    training = jt.train.Checkpoint(model={"w": jt.Variable(np.ones((6, 2), "f4"))})
                    manager = jt.train.CheckpointManager(training, tmp_path, max_to_keep=1)
                    manager.save(checkpoint_number=2)
                    jt.train.latest_checkpoint(tmp_path)
                return own(self, save_path)

        slow = Slow(model={"w": jt.Variable(np.zeros((6, 2), np.float32))})
        results = evaluator(tmp_path, slow, lambda: {"sum": slow.model["w"].numpy().sum()}).start()
        assert sums(results) == [("ckpt-2", 12.0)]
        assert "skipped ckpt-1, which was deleted or replaced meanwhile" in capsys.readouterr().out

    def test_a_checkpoint_of_other_names_is_no_result(self, tmp_path):
        jt.train.Checkpoint(net={"w": jt.Variable(TRAINED)}).save(tmp_path / "ckpt")
        jt.train.latest_checkpoint(tmp_path)
        with pytest.raises(AssertionError, match="net/w"):
            evaluator(tmp_path).start()

    def test_a_value_that_was_not_saved_is_no_result(self, tmp_path):
        save(tmp_path, 1)
        checkpoint = program()
        checkpoint.other = jt.Variable(1.0)
        with pytest.raises(AssertionError, match="other"):
            evaluator(tmp_path, checkpoint).start()

    def test_another_shape_is_no_result(self, tmp_path):
        save(tmp_path, 1)
        other = jt.train.Checkpoint(model={"w": jt.Variable(np.zeros((5, 2), np.float32))})
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"\(6, 2\).*\(5, 2\)"):
            evaluator(tmp_path, other).start()

    def test_an_error_of_the_function_is_raised_and_the_checkpoint_due_again(self, tmp_path):
        save(tmp_path, 1)
        with pytest.raises(ZeroDivisionError):
            evaluator(tmp_path, evaluate=lambda: {"sum": 1 / 0}).start()
        assert sums(evaluator(tmp_path).start()) == [("ckpt-1", 12.0)]

    @pytest.mark.parametrize(
        ("options", "error", "named"),
        [
            ({"checkpoint": {"w": 1}}, TypeError, "jt.train.Checkpoint"),
            ({"evaluate": 3}, TypeError, "function"),
            ({"max_evaluations": 0}, ValueError, "max_evaluations"),
            ({"last_step": -1}, ValueError, "last_step"),
            ({"timeout": -1}, ValueError, "timeout"),
            ({"poll_seconds": 0}, ValueError, "poll_seconds"),
        ],
    )
    def test_arguments_that_cannot_be(self, tmp_path, options, error, named):
        given = {"checkpoint": program(), "evaluate": dict, "checkpoint_dir": tmp_path}
        with pytest.raises(error, match=named):
            jt.train.SidecarEvaluator(**(given | options))


class TestStrategies:
    @pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
    def test_training_on_devices_is_restored_without_a_strategy(self, tmp_path, devices):
        with jt.MirroredStrategy(devices).scope():
            model = {"w": jt.Variable(TRAINED)}
        jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
        jt.train.latest_checkpoint(tmp_path)
        assert sums(evaluator(tmp_path).start()) == [("ckpt-1", 66.0)]

    def test_divided_variables_are_restored_as_one(self, tmp_path):
        gc.store(object())  # starts the thread of pyzmq that frees what was sent
        partitioner = jt.experimental.partitioners.FixedShardsPartitioner(2)
        with jt.testing.LocalCluster(workers=1, ps=2) as cluster:
            strategy = cluster.strategy(partitioner)
            with strategy.scope():
                model = {"w": jt.Variable(TRAINED)}
            assert isinstance(model["w"], jt.ShardedVariable)
            jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
            jt.train.latest_checkpoint(tmp_path)
        assert sums(evaluator(tmp_path).start()) == [("ckpt-1", 66.0)]

    def test_an_evaluator_does_not_take_the_parameter_servers(self, monkeypatch):
        spec = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
        config = {"cluster": spec, "task": {"type": "evaluator", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with pytest.raises(ValueError, match=r"evaluator.*SidecarEvaluator"):
            jt.ParameterServerStrategy(jt.cluster_resolver.TFConfigClusterResolver())

    def test_an_evaluator_is_a_worker_of_its_own(self, monkeypatch):
        spec = {"worker": ["a:1", "b:1"], "evaluator": ["e:1"]}
        config = {"cluster": spec, "task": {"type": "evaluator", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        strategy = jt.MultiWorkerMirroredStrategy()  # waits for nobody
        assert strategy.extended.should_checkpoint
        assert strategy.extended.experimental_between_graph is False
        assert strategy.topology.num_local == strategy.num_replicas_in_sync


def test_without_tensorboardx_results_are_written_and_one_line_says_why(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)  # as if it were not installed
    for number in (1, 2):
        save(tmp_path, number, number)
    assert len(evaluator(tmp_path, evaluate_all=True).start()) == 2
    assert capsys.readouterr().out.count('pip install "jaxtribute[tensorboard]"') == 1
    assert [p.name for p in (tmp_path / "evaluation").iterdir()] == [_evaluator.RESULTS]

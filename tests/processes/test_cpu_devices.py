"""CPU devices are made in time, with enough threads, or an error says what to do."""

import pytest

pytestmark = pytest.mark.processes

# A step in which the replicas have to wait for each other, a few times over.
STEP = """
import jax.numpy as jnp

def train(strategy, steps=5):
    with strategy.scope():
        v = jt.Variable(0.0, aggregation=jt.VariableAggregation.SUM)

    @jt.function
    def step(x):
        def replica_fn(x):
            i = jt.get_replica_context().replica_id_in_sync_group + 1
            v.assign_add(x * i)
        strategy.run(replica_fn, args=(x,))
        return v.value()

    for _ in range(steps):
        total = step(jnp.float32(1.0))
    n = strategy.num_replicas_in_sync
    assert float(total) == steps * n * (n + 1) / 2, total
    assert [float(c.value()) for c in v.values] == [float(total)] * n
    print("trained on", n)
"""

ON_TWO_CPUS = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
"""


def test_naming_two_devices_makes_them(python):
    output = python(
        """
        import os
        assert "PJRT_NPROC" not in os.environ
        import jaxtribute as jt
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        import jax
        assert len(jax.devices("cpu")) == 2
        assert strategy.extended.worker_devices == (
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "/job:localhost/replica:0/task:0/device:CPU:1",
        )
        """
        + indented(STEP)
        + """
        train(strategy)
        """
    )
    assert output.splitlines()[-1] == "trained on 2"


def test_on_two_cores_as_well(python):
    output = python(
        indented(ON_TWO_CPUS)
        + """
        import jaxtribute as jt
        """
        + indented(STEP)
        + """
        train(jt.MirroredStrategy(["CPU:0", "CPU:1"]), steps=200)
        """
    )
    assert output.splitlines()[-1] == "trained on 2"


@pytest.mark.parametrize("count", [4, 8])
def test_more_devices(python, count):
    output = python(
        f"""
        import jaxtribute as jt
        jt.config.set_logical_cpu_devices({count})
        """
        + indented(STEP)
        + """
        train(jt.MirroredStrategy(), steps=20)
        """
    )
    assert output.splitlines()[-1] == f"trained on {count}"


def test_importing_starts_nothing(python):
    python(
        """
        import os
        before = dict(os.environ)
        import jaxtribute as jt
        import jax
        assert dict(os.environ) == before
        jax.config.update("jax_num_cpu_devices", 3)  # refused once JAX has started
        assert len(jax.devices("cpu")) == 3
        """
    )


def test_a_strategy_for_one_device_leaves_the_rest_to_jax(python):
    python(
        """
        import jaxtribute as jt, jax
        strategy = jt.OneDeviceStrategy("CPU:0")
        assert strategy.run(lambda: 1) == 1
        assert len(jax.devices("cpu")) == 1
        """
    )


def test_without_a_list_the_one_cpu_is_taken(python):
    python(
        """
        import jaxtribute as jt
        strategy = jt.MirroredStrategy()
        assert strategy.num_replicas_in_sync == 1
        with strategy.scope():
            assert isinstance(jt.Variable(1.0), jt.MirroredVariable)
        """
    )


def test_one_device_named_by_its_index(python):
    python(
        """
        import jaxtribute as jt, jax
        strategy = jt.OneDeviceStrategy("CPU:2")
        assert len(jax.devices("cpu")) == 3
        assert strategy.extended.worker_devices[0].endswith("CPU:2")
        """
    )


def test_too_late_says_what_to_call_and_where(python):
    message = python(
        """
        import jax.numpy as jnp
        jnp.ones(2)  # starts JAX, with one CPU device
        import jaxtribute as jt
        try:
            jt.MirroredStrategy(["CPU:0", "CPU:1"])
        except ValueError as error:
            print(error)
        """
    )
    assert "no device '/job:localhost/replica:0/task:0/device:CPU:1'" in message
    assert "jt.config.set_logical_cpu_devices(2)" in message
    assert "at the top of the program" in message
    assert "before anything creates an array" in message


def test_the_advice_works(python):
    output = python(
        """
        import jaxtribute as jt
        jt.config.set_logical_cpu_devices(2)
        import jax.numpy as jnp
        jnp.ones(2)
        """
        + indented(STEP)
        + """
        train(jt.MirroredStrategy(["CPU:0", "CPU:1"]))
        """
    )
    assert output.splitlines()[-1] == "trained on 2"


@pytest.mark.parametrize("start", ["jnp.ones(2)", "jax.devices()", "jt.Variable(1.0)"])
def test_setting_the_number_too_late_says_what_to_do(python, start):
    message = python(
        f"""
        import jaxtribute as jt, jax, jax.numpy as jnp
        {start}
        try:
            jt.config.set_logical_cpu_devices(2)
        except RuntimeError as error:
            print(error)
        jt.config.set_logical_cpu_devices(1)  # what there is
        """
    )
    assert "already started with 1 CPU device" in message
    assert "jt.config.set_logical_cpu_devices(2)" in message
    assert "at the top of the program" in message


def test_the_number_may_be_changed_until_jax_starts(python):
    python(
        """
        import jaxtribute as jt, jax
        jt.config.set_logical_cpu_devices(2)
        jt.config.set_logical_cpu_devices(3)
        assert len(jax.devices("cpu")) == 3
        """
    )


def test_a_larger_number_is_served_with_threads_too(python):
    """The pool is sized for the number in the end, not for the first one asked for."""
    output = python(
        indented(ON_TWO_CPUS)
        + """
        import jaxtribute as jt
        jt.config.set_logical_cpu_devices(2)
        jt.config.set_logical_cpu_devices(8)
        """
        + indented(STEP)
        + """
        train(jt.MirroredStrategy())
        """
    )
    assert output.splitlines()[-1] == "trained on 8"


def test_a_second_strategy_may_ask_for_more_until_jax_starts(python):
    python(
        """
        import jaxtribute as jt, jax
        jt.config.set_logical_cpu_devices(4)
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        assert len(jax.devices("cpu")) == 4
        assert jt.MirroredStrategy(["CPU:2", "CPU:3"]).num_replicas_in_sync == 2
        """
    )


class TestTooFewThreads:
    """The user started JAX: a clear error instead of a program that stands still."""

    MAKE = """
        import jax
        jax.config.update("jax_num_cpu_devices", 2)
        jax.devices()
        import jaxtribute as jt
        try:
            jt.MirroredStrategy({devices})
        except RuntimeError as error:
            print(error)
        """

    @pytest.mark.parametrize("devices", ['["CPU:0", "CPU:1"]', ""], ids=["named", "all"])
    def test_because_of_few_cores(self, python, devices):
        message = python(indented(ON_TWO_CPUS) + self.MAKE.format(devices=devices))
        assert "2 threads for 2 CPU devices" in message
        assert "deadlock" in message
        assert "jt.config.set_logical_cpu_devices(2)" in message

    def test_because_of_a_setting(self, python):
        message = python(
            self.MAKE.format(devices='["CPU:0", "CPU:1"]'), environment={"PJRT_NPROC": "2"}
        )
        assert "2 threads for 2 CPU devices" in message
        assert "deadlock" in message
        assert "PJRT_NPROC" in message

    @pytest.mark.parametrize(("devices", "threads"), [(4, 5), (8, 12)])
    def test_a_few_more_threads_than_devices_are_too_few(self, python, devices, threads):
        """Such programs stand still after some hundred steps."""
        output = python(
            f"""
            import jax
            jax.config.update("jax_num_cpu_devices", {devices})
            jax.devices()
            import jaxtribute as jt
            try:
                jt.MirroredStrategy()
            except RuntimeError as error:
                print(error)
            """,
            environment={"PJRT_NPROC": str(threads)},
        )
        assert "deadlock" in output

    @pytest.mark.parametrize("is_users", [False, True])
    def test_a_setting_that_is_too_small_is_raised_while_it_can_be(self, python, is_users):
        """`jaxtribute launch` does not know what devices a script makes; users are told."""
        output = python(
            """
            import os, warnings
            import jaxtribute as jt
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                jt.MirroredStrategy(["CPU:0", "CPU:1"])
            print(os.environ["PJRT_NPROC"], *(one.message for one in told))
            """,
            environment={"PJRT_NPROC": "2"} | ({} if is_users else {"JAXTRIBUTE_PJRT_NPROC": "2"}),
        )
        number, _, told = output.strip().partition(" ")
        assert int(number) >= 4
        assert ("PJRT_NPROC was 2" in told) == is_users

    def test_one_device_of_them_may_be_used(self, python):
        python(
            indented(ON_TWO_CPUS)
            + """
        import jax
        jax.config.update("jax_num_cpu_devices", 2)
        jax.devices()
        import jaxtribute as jt
        assert jt.OneDeviceStrategy("CPU:1").run(lambda: 1) == 1
        assert jt.MirroredStrategy(["CPU:1"]).run(lambda: 1) == 1
        """
        )

    def test_threads_asked_for_by_the_user_are_enough(self, python):
        output = python(
            """
            import jax
            jax.config.update("jax_num_cpu_devices", 2)
            jax.devices()
            import jaxtribute as jt
            """
            + indented(STEP, 12)
            + """
            train(jt.MirroredStrategy(["CPU:0", "CPU:1"]), steps=200)
            """,
            environment={"PJRT_NPROC": "8"},
        )
        assert output.splitlines()[-1] == "trained on 2"


class TestOtherWaysToAsk:
    def test_xla_flags(self, python):
        output = python(
            """
            import jaxtribute as jt
            """
            + indented(STEP, 12)
            + """
            train(jt.MirroredStrategy())
            """,
            environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        )
        assert output.splitlines()[-1] == "trained on 2"

    def test_xla_flags_and_names(self, python):
        output = python(
            """
            import jaxtribute as jt
            """
            + indented(STEP, 12)
            + """
            train(jt.MirroredStrategy(["CPU:0", "CPU:1"]))
            import jax
            assert len(jax.devices("cpu")) == 4
            """,
            environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        )
        assert output.splitlines()[-1] == "trained on 2"

    def test_names_ask_for_more_than_xla_flags(self, python):
        output = python(
            """
            import jaxtribute as jt
            """
            + indented(STEP, 12)
            + """
            train(jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]))
            """,
            environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        )
        assert output.splitlines()[-1] == "trained on 3"

    def test_a_variable_of_jax(self, python):
        output = python(
            """
            import jaxtribute as jt
            """
            + indented(STEP, 12)
            + """
            train(jt.MirroredStrategy())
            """,
            environment={"JAX_NUM_CPU_DEVICES": "2"},
        )
        assert output.splitlines()[-1] == "trained on 2"

    def test_the_setting_of_jax(self, python):
        output = python(
            """
            import jax
            jax.config.update("jax_num_cpu_devices", 2)
            import jaxtribute as jt
            """
            + indented(STEP, 12)
            + """
            train(jt.MirroredStrategy())
            """
        )
        assert output.splitlines()[-1] == "trained on 2"

    def test_the_threads_asked_for_are_kept(self, python):
        python(
            """
            import os
            import jaxtribute as jt
            jt.config.set_logical_cpu_devices(2)
            assert os.environ["PJRT_NPROC"] == "16"
            """,
            environment={"PJRT_NPROC": "16"},
        )


def indented(text, spaces=8):
    """Return `text` indented like the program it becomes part of."""
    return "".join(
        " " * spaces + line if line.strip() else line for line in text.splitlines(keepends=True)
    )

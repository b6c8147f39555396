"""Names of devices, and the making of CPU devices."""

import os

import jax
import pytest

import jaxtribute as jt
from jaxtribute import _devices
from jaxtribute._devices import DeviceName

LOCAL = "/job:localhost/replica:0/task:0"


class TestNames:
    @pytest.mark.parametrize(
        ("text", "platform", "index"),
        [
            ("CPU:0", "cpu", 0),
            ("CPU:1", "cpu", 1),
            ("cpu:2", "cpu", 2),
            ("/cpu:0", "cpu", 0),
            ("/CPU:3", "cpu", 3),
            ("device:CPU:1", "cpu", 1),
            ("/device:CPU:1", "cpu", 1),
            ("/device:cpu:1", "cpu", 1),
            ("CPU", "cpu", 0),
            ("GPU:0", "gpu", 0),
            ("/gpu:0", "gpu", 0),
            ("/GPU:12", "gpu", 12),
            ("/device:GPU:1", "gpu", 1),
            ("cuda:1", "gpu", 1),
            ("TPU:0", "tpu", 0),
            ("/device:TPU:7", "tpu", 7),
            (f"{LOCAL}/device:CPU:0", "cpu", 0),
            (f"{LOCAL}/device:GPU:1", "gpu", 1),
            (f"{LOCAL}/cpu:1", "cpu", 1),
            ("/job:localhost/device:CPU:0", "cpu", 0),
            ("/job:localhost/replica:0/device:CPU:0", "cpu", 0),
            ("/job:localhost/task:0/device:CPU:1", "cpu", 1),
            ("/replica:0/task:0/device:CPU:1", "cpu", 1),
            ("/task:0/device:CPU:1", "cpu", 1),
        ],
    )
    def test_every_form_is_read(self, text, platform, index):
        assert DeviceName.parse(text) == DeviceName(platform, index)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "0",
            "CPU:",
            "CPU:x",
            "CPU:-1",
            "CPU:0:1",
            "CPU 0",
            " CPU:0",
            "CPU:0\n",
            "CPU:*",
            "XPU:0",
            "/device:",
            "//CPU:0",
            "/job:/device:CPU:0",
            "/task:zero/device:CPU:0",
        ],
    )
    def test_anything_else_is_refused(self, text):
        with pytest.raises(ValueError, match="is not a device name") as raised:
            DeviceName.parse(text)
        assert repr(text) in str(raised.value)
        assert "'GPU:0'" in str(raised.value)

    @pytest.mark.parametrize("text", ["/job:localhost", "/job:localhost/replica:0/task:0"])
    def test_tasks_are_refused_with_who_decides(self, text):
        with pytest.raises(ValueError, match=r"names a task.*is decided by the strategy"):
            DeviceName.parse(text)

    @pytest.mark.parametrize(
        "text",
        [
            "/job:worker/replica:0/task:0/device:GPU:0",
            "/job:worker/task:1/device:CPU:0",
            "/job:localhost/replica:0/task:1/device:CPU:0",
            "/job:localhost/replica:1/task:0/device:CPU:0",
            "/task:1/device:CPU:0",
            "/job:local/device:CPU:0",
            "/job:l/device:CPU:0",
        ],
    )
    def test_devices_of_other_tasks_are_refused(self, text):
        with pytest.raises(RuntimeError, match="another task") as raised:
            DeviceName.parse(text)
        assert "MultiWorkerMirroredStrategy" in str(raised.value)

    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("cpu:1", f"{LOCAL}/device:CPU:1"),
            ("/gpu:0", f"{LOCAL}/device:GPU:0"),
            ("TPU:3", f"{LOCAL}/device:TPU:3"),
            (f"{LOCAL}/device:CPU:0", f"{LOCAL}/device:CPU:0"),
        ],
    )
    def test_the_canonical_form_is_the_full_one(self, text, canonical):
        assert str(DeviceName.parse(text)) == canonical
        assert str(DeviceName.parse(canonical)) == canonical


class TestResolve:
    def test_a_name_gives_the_device_of_that_index(self):
        assert _devices.resolve("CPU:3") == jax.local_devices(backend="cpu")[3]

    def test_a_device_is_itself(self):
        device = jax.devices("cpu")[2]
        assert _devices.resolve(device) is device

    def test_the_canonical_name_of_each_device(self):
        names = [_devices.canonical_name(d) for d in jax.devices("cpu")]
        assert names == [f"{LOCAL}/device:CPU:{i}" for i in range(8)]

    def test_names_and_devices_may_be_mixed(self):
        cpus = jax.devices("cpu")
        assert _devices.resolve_all(["cpu:1", cpus[0], f"{LOCAL}/device:CPU:4"]) == [
            cpus[1],
            cpus[0],
            cpus[4],
        ]

    def test_a_missing_cpu_device_says_how_to_make_it(self):
        with pytest.raises(ValueError, match="no device") as raised:
            _devices.resolve("CPU:8")
        message = str(raised.value)
        assert f"{LOCAL}/device:CPU:8" in message
        assert f"{LOCAL}/device:CPU:7" in message  # what there is
        assert "jt.config.set_logical_cpu_devices(9)" in message
        assert "at the top of the program" in message

    @pytest.mark.parametrize("name", ["GPU:0", "/gpu:1", "TPU:0"])
    def test_a_missing_accelerator_says_what_there_is(self, name):
        with pytest.raises(ValueError, match="no device") as raised:
            _devices.resolve(name)
        message = str(raised.value)
        assert str(DeviceName.parse(name)) in message
        assert "device:CPU:0" in message
        assert "set_logical_cpu_devices" not in message

    @pytest.mark.parametrize("device", [0, None, 1.5, ["CPU:0"], object()])
    def test_what_is_no_device_is_refused(self, device):
        with pytest.raises(ValueError, match=r"Expected a jax.Device or a name") as raised:
            _devices.resolve(device)
        assert type(device).__name__ in str(raised.value)


class TestDeviceScope:
    def test_places_new_arrays(self):
        with jt.device("CPU:5"):
            assert jax.numpy.ones(2).devices() == {jax.devices("cpu")[5]}
        assert jax.numpy.ones(2).devices() == {jax.devices("cpu")[0]}

    def test_places_plain_variables(self):
        with jt.device("/cpu:5"):
            v = jt.Variable(1.0)
        assert v.device == f"{LOCAL}/device:CPU:5"
        v.assign(2.0)
        assert v.device == f"{LOCAL}/device:CPU:5"

    def test_the_innermost_wins(self):
        with jt.device("CPU:5"), jt.device("CPU:6"):
            assert jt.Variable(1.0).device == f"{LOCAL}/device:CPU:6"

    def test_does_not_move_a_strategys_variables(self):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope(), jt.device("CPU:5"):
            v = jt.Variable(1.0)
        assert [c.device for c in v.values] == list(strategy.extended.worker_devices)

    def test_refuses_a_wrong_name(self):
        with pytest.raises(ValueError, match="is not a device name"), jt.device("nowhere"):
            pass
        assert jax.numpy.ones(2).devices() == {jax.devices("cpu")[0]}


class TestCpuDevices:
    """What can be tested after JAX has started; the rest is in `tests/processes`."""

    def test_asking_again_for_what_there_is_is_fine(self):
        jt.config.set_logical_cpu_devices(8)

    @pytest.mark.parametrize("count", [1, 9])
    def test_asking_for_another_number_too_late_says_what_to_do(self, count):
        with pytest.raises(RuntimeError, match="already started with 8 CPU device") as raised:
            jt.config.set_logical_cpu_devices(count)
        message = str(raised.value)
        assert f"jt.config.set_logical_cpu_devices({count})" in message
        assert "at the top of the program" in message
        assert len(jax.devices("cpu")) == 8

    @pytest.mark.parametrize("count", [0, -1])
    def test_the_number_must_be_positive(self, count):
        with pytest.raises(ValueError, match="positive number of CPU devices"):
            jt.config.set_logical_cpu_devices(count)

    def test_asking_changes_no_setting_of_jax(self):
        before = jax.config.jax_num_cpu_devices
        with pytest.raises(ValueError, match="no device"):
            _devices.resolve("CPU:100")
        assert jax.config.jax_num_cpu_devices == before

    @pytest.mark.parametrize(
        ("devices", "threads", "refused"),
        [
            (2, 1, True),
            (2, 2, True),
            (2, 4, False),
            (2, 8, False),
            # Seen to stand still: the next step's collectives start before the last have ended.
            (4, 5, True),
            (8, 9, True),
            (8, 12, True),
            (8, 14, True),
            (8, 16, False),
            (8, 32, False),
        ],
    )
    def test_a_pool_that_is_too_small_is_refused(self, monkeypatch, devices, threads, refused):
        monkeypatch.setenv("PJRT_NPROC", str(threads))
        if refused:
            with pytest.raises(RuntimeError, match="deadlock"):
                _devices.check_cpu_threads(jax.devices("cpu")[:devices])
        else:
            _devices.check_cpu_threads(jax.devices("cpu")[:devices])

    def test_a_pool_of_the_users_is_kept_or_said_to_be_too_small(self, monkeypatch):
        monkeypatch.setenv("PJRT_NPROC", "5")
        _devices._size_thread_pool(2)
        assert os.environ["PJRT_NPROC"] == "5"
        with pytest.warns(RuntimeWarning, match="PJRT_NPROC was 5.*16 or more"):
            _devices._size_thread_pool(8)

    def test_one_device_needs_no_pool(self, monkeypatch):
        monkeypatch.setenv("PJRT_NPROC", "1")
        _devices.check_cpu_threads(jax.devices("cpu")[:1])

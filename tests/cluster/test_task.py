"""Tasks and addresses: parsed once, and written as they were."""

import pytest

from jaxtribute.cluster._address import Address
from jaxtribute.cluster._task import Task


class TestTask:
    @pytest.mark.parametrize("name", ["worker:1", "chief:0", "ps:12"])
    def test_its_name_is_its_text(self, name):
        assert str(Task.parse(name)) == name

    def test_parts(self):
        assert Task.parse("worker:1") == Task("worker", 1)

    def test_order_is_by_job_and_then_by_number(self):
        tasks = [Task("worker", 10), Task("worker", 9), Task("chief", 0)]
        assert sorted(tasks) == [Task("chief", 0), Task("worker", 9), Task("worker", 10)]

    @pytest.mark.parametrize("text", ["worker", "worker:", ":1", "worker:-1", "worker:x", ""])
    def test_something_else_is_refused(self, text):
        with pytest.raises(ValueError, match=r"such as 'worker:1', got"):
            Task.parse(text)


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("host0:2222", "host0", 2222),
            ("train-0.train.default.svc:1", "train-0.train.default.svc", 1),
            ("10.0.0.5:65535", "10.0.0.5", 65535),
            ("my_host.:80", "my_host.", 80),
            ("[::1]:2222", "::1", 2222),
            ("[fe80::1%eth0]:2222", "fe80::1%eth0", 2222),
        ],
    )
    def test_host_and_port(self, text, host, port):
        address = Address.parse(text)
        assert (address.host, address.port) == (host, port)
        assert str(address) == text

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("host0", "no port"),
            ("[::1]", "no port"),
            ("host0:", "its port is ''"),
            ("host0:x", "its port is 'x'"),
            ("host0:0", "from 1 to 65535"),
            ("host0:65536", "from 1 to 65535"),
            ("host0:-1", "from 1 to 65535"),
            ("host0:٣", "from 1 to 65535"),
            (":2222", "names no host"),
            ("", "names no host"),
            ("host 0:2222", "'host 0' is no name"),
            ("-host:2222", "'-host' is no name"),
            ("grpc://host0:2222", "protocol"),
            ("::1", "brackets"),
            ("fe80::1:2222", "brackets"),
            ("[host0]:2222", "no IPv6 address"),
            ("[]:2222", "no IPv6 address"),
        ],
    )
    def test_something_else_is_refused(self, text, why):
        with pytest.raises(ValueError) as raised:
            Address.parse(text)
        assert why in str(raised.value)

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [
            ("localhost", True),
            ("LocalHost", True),
            ("worker.localhost", True),
            ("127.0.0.1", True),
            ("127.3.2.1", True),
            ("::1", True),
            ("0.0.0.0", True),  # which is no less each machine itself
            ("::", True),
            ("host0", False),
            ("localhost0", False),
            ("10.0.0.1", False),
            ("fe80::1", False),
        ],
    )
    def test_which_means_each_machine_itself(self, host, loopback):
        assert Address(host, 1).is_loopback is loopback

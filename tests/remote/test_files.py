"""Waiting for what servers do with files."""

from types import SimpleNamespace

import pytest

from jaxtribute.errors import FailedPreconditionError
from jaxtribute.ps._messages import Files
from jaxtribute.remote._files import Saving


def test_a_failure_is_raised_when_no_server_writes_any_more(tmp_path):
    busy, done, full = Files(False, None), Files(True, None), Files(True, "OSError: disk full")
    answers = [{}, {0: busy, 1: full}, {0: busy}, {0: done}]

    class Session:
        origin = "origin"

        def ask(self, asked, what):
            return {task: (files, ()) for task, files in answers.pop(0).items()}

    variables = [SimpleNamespace(described=SimpleNamespace(task=i), number=i) for i in range(2)]
    saving = Saving(Session(), tmp_path, [("a", 0, variables[0]), ("b", 0, variables[1])])
    with pytest.raises(FailedPreconditionError, match="ps:1: OSError: disk full"):
        saving.wait()
    assert not answers

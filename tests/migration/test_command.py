"""`jaxtribute migrate` on files and directories."""

import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from jaxtribute.cli import main

BEFORE = "import tensorflow as tf\nv = tf.Variable(1.0)\n"
AFTER = "import jaxtribute as jt\nv = jt.Variable(1.0)\n"
LEFT = "import tensorflow as tf\nn = tf.random.normal([2])\n"


def migrate(*arguments):
    return CliRunner().invoke(main, ["migrate", *map(str, arguments)], prog_name="jaxtribute")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "src/train.py": BEFORE,
        "src/deep/er/left.py": LEFT,
        "src/other.py": "print('no change')\n",
        "src/notes.txt": BEFORE,
        "src/.hidden/x.py": BEFORE,
        "src/env/lib/x.py": BEFORE,
        "src/env/pyvenv.cfg": "",
        "src/__pycache__/x.py": BEFORE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def contents(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_the_diff_is_shown_and_nothing_is_written(project):
    before = contents(project)
    result = migrate("src")
    assert result.exit_code == 0
    assert contents(project) == before
    assert result.stdout.count("+++ ") == 2
    assert "--- a/src/train.py\n+++ b/src/train.py\n" in result.stdout
    assert "-v = tf.Variable(1.0)\n+import jaxtribute as jt\n+v = jt.Var" in result.stdout
    assert "src/deep/er/left.py:2: tf.random.normal has a state" in result.stderr
    assert "2 of 3 files would change, 1 rewrite, 1 place for a person." in result.stderr
    assert "--write" in result.stderr


def test_the_diff_can_be_applied(project):
    diff = migrate("src").stdout
    apply = ["git", "apply", "--unsafe-paths", "-"]
    subprocess.run(apply, input=diff, text=True, check=True, cwd=project, timeout=60)
    assert (project / "src/train.py").read_text() == AFTER


def test_write_changes_what_has_to_change_and_nothing_else(project):
    train, other = project / "src/train.py", project / "src/other.py"
    train.chmod(0o755)
    untouched = {path: data for path, data in contents(project).items() if path.name == "x.py"}
    other_time = other.stat().st_mtime_ns
    result = migrate("--write", "src")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "2 of 3 files changed, 1 rewrite, 1 place for a person." in result.stderr
    assert train.read_text() == AFTER
    assert stat.S_IMODE(train.stat().st_mode) == 0o755
    assert other.stat().st_mtime_ns == other_time
    assert (project / "src/notes.txt").read_text() == BEFORE
    assert {path: path.read_bytes() for path in untouched} == untouched
    assert not list(project.rglob(".migrating-*"))  # no half-written files

    again = migrate("--write", "src")
    assert "0 of 3 files changed, 0 rewrites, 1 place for a person." in again.stderr


def test_files_are_taken_as_they_are_named(project):
    hidden = project / "src/.hidden/x.py"
    result = migrate("--write", hidden, hidden, project / "src/.hidden")
    assert hidden.read_text() == AFTER
    assert "1 of 1 file changed" in result.stderr


def test_what_cannot_be_read_is_told_after_the_others_are_done(project):
    (project / "a.py").write_text("import tensorflow as tf\nprint 'old'\n")
    (project / "b.py").write_bytes(b"import tensorflow\n\xff\n")
    (project / "c.py").write_text("# coding: nothing\nimport tensorflow\n")
    broken = {name: (project / name).read_bytes() for name in ("a.py", "b.py", "c.py")}
    result = migrate("--write", project)
    assert result.exit_code == 1
    assert (project / "src/train.py").read_text() == AFTER
    assert {name: (project / name).read_bytes() for name in broken} == broken
    assert "a.py: line 2, column" in result.stderr
    assert "b.py: 'utf-8' codec can't decode" in result.stderr
    assert "c.py: unknown encoding: nothing" in result.stderr
    assert "3 files left as they are: see above" in result.stderr


def test_encodings_line_ends_and_links_are_kept(tmp_path):
    latin = tmp_path / "latin.py"
    latin.write_bytes(
        "# coding: latin-1\r\nimport tensorflow as tf\r\né = tf.bool".encode("latin-1")
    )
    marked = tmp_path / "marked.py"
    marked.write_bytes(b"\xef\xbb\xbf" + BEFORE.encode())
    link = tmp_path / "link.py"
    link.symlink_to(marked)
    assert "\\ No newline at end of file\n" in migrate(latin).stdout
    assert migrate("--write", latin, link).exit_code == 0
    expected = "# coding: latin-1\r\nimport jax.numpy as jnp\r\né = jnp.bool_"
    assert latin.read_bytes() == expected.encode("latin-1")
    assert link.is_symlink()
    assert marked.read_bytes() == b"\xef\xbb\xbf" + AFTER.encode()


def test_what_cannot_be_written_is_told_and_stays_as_it_was(project):
    program = (
        "import resource, sys; sys.dont_write_bytecode = True  # else modules are cut off\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "from jaxtribute.cli import main; main(['migrate', '--write', 'src'])"
    )
    before = contents(project)
    ran = run(program)
    assert ran.returncode == 1
    assert "src/train.py: [Errno 27] File too large" in ran.stderr
    assert "0 of 3 files changed, 0 rewrites" in ran.stderr
    assert contents(project) == before


def test_keras_is_told_its_backend(tmp_path):
    (tmp_path / "m.py").write_text("import tensorflow as tf\nm = tf.keras.Model()\n")
    assert "set KERAS_BACKEND=jax" in migrate(tmp_path).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "Missing argument 'PATH...'"), (["missing.py"], "Path 'missing.py' does not exist.")],
)
def test_mistakes_are_told(arguments, said, project):
    result = migrate(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_libcst_it_says_how_to_install_it(project):
    ran = run(
        "import sys; sys.modules['libcst'] = None\n"
        "from jaxtribute.cli import main; main(['migrate', 'src'])"
    )
    assert ran.returncode == 1
    assert 'pip install "jaxtribute[migrate]"' in ran.stderr
    assert "Traceback" not in ran.stderr


def run(program):
    command = [sys.executable, "-B", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

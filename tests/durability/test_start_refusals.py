"""A broker that cannot use its folder says so in one sentence and ends with exit code 1."""

import subprocess
import sys
from pathlib import Path

from support.broker_process import BrokerProcess
from support.mounts import small_disk
from support.raw_client import RawClient, batch_of

ANABRANCH = Path(sys.executable).with_name("anabranch")


def _serve(folder: Path, port: int = 0) -> subprocess.CompletedProcess[str]:
    """Start a broker that is expected to end by itself."""
    return subprocess.run(
        [
            str(ANABRANCH),
            "serve",
            "--override",
            f"log.dirs={folder}",
            "--override",
            f"listeners=PLAINTEXT://127.0.0.1:{port}",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _refusal(folder: Path, port: int = 0) -> str:
    """What it says; exactly one line on stderr, nothing on stdout."""
    ended = _serve(folder, port)
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return line


def test_a_second_broker_on_the_same_folder_is_refused(broker: BrokerProcess) -> None:
    """The first one is not disturbed."""
    line = _refusal(broker.data_dir)
    assert f"{broker.data_dir} is in use by another broker" in line
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        assert client.produce("t", 0, batch_of([b"v"])).error_code == 0
    assert broker.stop() == 0


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file stands where a folder of the path should be."""
    (tmp_path / "file").write_text("")
    line = _refusal(tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "data") in line
    assert "Not a directory" in line


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """The path itself is a file."""
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in _refusal(tmp_path / "file")


def test_a_read_only_disk_is_refused(tmp_path: Path) -> None:
    """A new folder cannot be made on it, an old one cannot be written."""
    with small_disk(tmp_path / "disk", 8 * 1024 * 1024) as disk:
        used = disk.path / "used"
        broker = BrokerProcess(used)
        broker.start()
        assert broker.stop() == 0
        disk.set_read_only(True)
        for folder in (disk.path / "new", used):
            line = _refusal(folder)
            assert "Read-only file system" in line
            assert str(folder) in line


def test_a_port_in_use_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    """The folder is left clean, so that the next start need not check the logs."""
    line = _refusal(tmp_path / "other", broker.port)
    assert str(broker.port) in line
    assert (tmp_path / "other" / ".kafka_cleanshutdown").exists()


def test_a_damaged_metadata_file_is_refused(broker: BrokerProcess) -> None:
    """A `metadata.db` that is no database is named, not replaced."""
    assert broker.stop() == 0
    path = broker.data_dir / "metadata.db"
    for extra in broker.data_dir.glob("metadata.db-*"):
        extra.unlink()
    path.write_bytes(b"not a database at all" * 500)
    line = _refusal(broker.data_dir)
    assert "metadata.db" in line
    assert path.read_bytes() == b"not a database at all" * 500

"""Tests the keys of a cluster: how they are made, which addresses need them, and that both ends refuse strangers."""

import socket
import ssl
import stat
import subprocess
from pathlib import Path
from time import monotonic, sleep

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.cluster.interface import Joined
from mlx_bulk.runner.cluster.messages import Ack
from mlx_bulk.runner.network import tls_keys
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink
from mlx_bulk.runner.network.tls_keys import FILES, make_keys, require_keys, require_safe_address

from .dask_ends import PATIENCE, fleet, hello, link, next_event


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster") / "keys"
    make_keys(folder)
    return folder


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    make_keys(folder)
    return folder


def test_keys_are_three_files_and_the_secret_one_is_for_their_owner_alone(keys: Path) -> None:
    assert sorted(path.name for path in keys.iterdir()) == sorted(FILES)  # the authority's own key is gone
    assert stat.S_IMODE((keys / "node.key").stat().st_mode) == 0o600
    ends = subprocess.run(["openssl", "x509", "-in", keys / "node.pem", "-noout", "-checkend", str(3649 * 86400)], check=False)
    assert ends.returncode == 0
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))  # strict from Python 3.13 on
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(keys / "node.pem", keys / "node.key")
    text = subprocess.run(["openssl", "x509", "-in", keys / "node.pem", "-noout", "-text"], check=True, capture_output=True, text=True)
    assert "prime256v1" in text.stdout


def test_keys_are_never_overwritten(keys: Path) -> None:
    before = [(keys / name).read_bytes() for name in FILES]
    with pytest.raises(ConfigError, match=r"found ca\.pem, node\.pem, node\.key; expected a folder without keys"):
        make_keys(keys)
    assert [(keys / name).read_bytes() for name in FILES] == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: cannot write keys"):
        make_keys(tmp_path / "file")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("tcp://localhost:8786", "tcp://localhost:8786"),
        ("127.0.0.1:0", "tcp://127.0.0.1:0"),
        ("[::1]:5", "tcp://[::1]:5"),
    ],
)
def test_loopback_needs_no_keys(address: str, url: str) -> None:
    assert require_safe_address(address, None) == url


def test_any_other_address_needs_keys_and_both_ways_out_are_said(keys: Path, tmp_path: Path) -> None:
    for address in ("tcp://studio.local:8786", "0.0.0.0:8786", "192.168.1.5:8786"):
        with pytest.raises(ConfigError) as caught:
            require_safe_address(address, None)
        assert "mlx-bulk cluster-keys FOLDER" in str(caught.value)
        assert "ssh -R 8786:localhost:PORT WORKER mlx-bulk worker tcp://localhost:8786" in str(caught.value)
    assert require_safe_address("0.0.0.0:8786", str(keys)) == "tls://0.0.0.0:8786"
    assert require_safe_address("tls://studio.local:8786", str(keys)) == "tls://studio.local:8786"
    with pytest.raises(ConfigError, match=r"found no keys; .* add --tls FOLDER"):
        require_safe_address("tls://studio.local:8786", None)
    with pytest.raises(ConfigError, match=r"expected tls://studio\.local:8786, or no --tls"):
        require_safe_address("tcp://studio.local:8786", str(keys))
    with pytest.raises(ConfigError, match=r"found no ca\.pem, node\.pem, node\.key"):
        require_safe_address("tls://studio.local:8786", str(tmp_path))


@pytest.mark.parametrize("address", ["studio", "http://studio:1", "tcp://studio", "tcp://:8786", "tcp://a:b", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected an address such as tls://studio"):
        require_safe_address(address, None)


def test_both_ends_with_the_same_keys_talk(keys: Path) -> None:
    with fleet(tls=keys) as driver:
        assert driver.address.startswith("tls://127.0.0.1:")
        with link(driver.address, keys) as worker:
            worker.send(hello())
            assert next_event(driver, Joined).worker == "studio-1"
            driver.send("studio-1", Ack("a1", 3))
            assert worker.receive(PATIENCE) == Ack("a1", 3)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the driver says of connections that it refused; waits for the first, as the worker may know before it."""
    deadline = monotonic() + PATIENCE
    while not (found := [line for line in caplog.messages if "refused" in line]) and monotonic() < deadline:
        sleep(0.01)
    return found


def test_keys_of_another_cluster_are_refused_and_both_sides_say_so(keys: Path, other_keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    with fleet(tls=keys) as driver:
        worker = DriverLink(driver.address, str(other_keys))
        with pytest.raises(ConfigError, match=r"are not of one cluster .* copy the folder of keys that the driver uses"):
            worker.connect()
        worker.close()
        assert driver.events(0) == []
        [said] = refusals(caplog)
    assert said.startswith("refused a connection from 127.0.0.1, which did not show a certificate of this cluster (")
    assert "TLSV1_ALERT_UNKNOWN_CA" in said or "EOF" in said  # a worker of Python 3.11.2 closes the connection without the alert


def test_a_client_without_a_certificate_gets_nothing(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    context.check_hostname = False
    with fleet(tls=keys) as driver:
        host, _, port = driver.address.removeprefix("tls://").rpartition(":")
        with (
            pytest.raises(ssl.SSLError),
            socket.create_connection((host, int(port)), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as stranger,
        ):
            stranger.recv(1)
    assert any("did not show a certificate of this cluster (PEER_DID_NOT_RETURN_A_CERTIFICATE)" in line for line in caplog.messages)


def test_a_worker_without_keys_does_not_reach_a_driver_with_them_and_is_told_how(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mlx_bulk")
    with fleet(tls=keys) as driver:
        worker = DriverLink(driver.address.replace("tls://", "tcp://"))
        with pytest.raises(OSError, match=r"; a driver with keys is reached at tls://… with --tls FOLDER"):
            worker.connect()
        worker.close()
    (said,) = [line for line in caplog.messages if line.startswith("no driver answers at tcp://")]
    assert "a driver with keys is reached at tls://… with --tls FOLDER" in said


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused_at_both_ends(mode: int, tmp_path: Path) -> None:
    make_keys(tmp_path)
    assert require_keys(str(tmp_path)) == tmp_path
    (tmp_path / "node.key").chmod(mode)
    found = rf"node\.key: found the mode 0{mode:o}, .* type: chmod 600 {tmp_path}/node\.key"
    with pytest.raises(ConfigError, match=found):
        DaskFleet("127.0.0.1:0", str(tmp_path))
    with pytest.raises(ConfigError, match=found):
        DriverLink("tls://127.0.0.1:1", str(tmp_path))


def test_the_key_of_another_account_is_that_accounts_own_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a secret that a cluster's system has mounted for a container: ssh does not look there either."""
    make_keys(tmp_path)
    (tmp_path / "node.key").chmod(0o640)
    monkeypatch.setattr(tls_keys.os, "getuid", lambda: (tmp_path / "node.key").stat().st_uid + 1)
    assert require_keys(str(tmp_path)) == tmp_path

"""The keys of a cluster: a folder that each of its machines has a copy of, made by the openssl program that comes with the system.

Whoever has the folder may join a run, and a driver with it may run code on all workers. Knows no sockets: ``dask_comms.py`` uses the
files. The extra ``cluster`` brings no library that makes certificates; Python's own ssl module reads them only.
"""

import os
import secrets
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from ...configs.addresses import is_loopback, split_address
from ...configs.errors import ConfigError
from ...configs.visible import visible

FILES = ("ca.pem", "node.pem", "node.key")
_DAYS = "3650"
# Strict readers want these extensions; a name is not compared, since machines of a cluster are known by their keys alone.
_SETTINGS = """\
[req]
distinguished_name = subject
prompt = no
[subject]
CN = mlx-bulk cluster
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[node]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:mlx-bulk
"""


def make_keys(folder: Path) -> None:
    """Makes ca.pem, node.pem and node.key in ``folder``: elliptic curve keys (P-256), valid for ten years.

    The key of the authority is thrown away, so that nobody can make further certificates for the same cluster. Raises ConfigError
    where the folder holds keys already, cannot be written, or openssl is missing.
    """
    if held := [name for name in FILES if (folder / name).exists()]:
        raise ConfigError(f"{folder}: found {', '.join(held)}; expected a folder without keys: name another, or remove these files")
    if shutil.which("openssl") is None:
        raise ConfigError("found no program openssl, which makes the keys; install it, or make the keys on another machine")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            _make(Path(made))
            for name in FILES:
                (Path(made) / name).rename(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write keys ({error.strerror}); expected a folder that you may write to") from None


def _make(folder: Path) -> None:
    """Makes the files in a folder that nobody else can read."""
    (folder / "settings").write_text(_SETTINGS, encoding="ascii")
    (folder / "settings").chmod(0o600)
    subject = ("-config", "settings", "-subj", "/CN=mlx-bulk cluster")
    for name in ("ca.key", "node.key"):
        (folder / name).touch(mode=0o600)
        _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", name)
        (folder / name).chmod(0o600)
    serial = f"0x{secrets.token_hex(8)}"
    _openssl(folder, "req", "-new", "-x509", "-sha256", "-days", _DAYS, "-key", "ca.key", *subject, "-extensions", "ca", "-out", "ca.pem")
    _openssl(folder, "req", "-new", "-sha256", "-key", "node.key", *subject, "-out", "node.csr")
    ours = ("-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", serial, "-days", _DAYS, "-extfile", "settings", "-extensions", "node")
    _openssl(folder, "x509", "-req", "-sha256", "-in", "node.csr", *ours, "-out", "node.pem")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(("openssl", *arguments), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"openssl {arguments[0]} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")


def require_keys(folder: str) -> Path:
    """Returns the folder of keys. Raises ConfigError where one of its files is missing, or other accounts can read the secret one."""
    if missing := [name for name in FILES if not (Path(folder) / name).is_file()]:
        raise ConfigError(
            f"{folder}: found no {', '.join(missing)}; expected {', '.join(FILES)}: make them with mlx-bulk cluster-keys {folder}, or copy "
            "the folder from the machine where you made them"
        )
    key = Path(folder) / "node.key"
    status = key.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 and status.st_uid == os.getuid():  # as ssh has it: the key of another account is not for us to judge
        who = "other accounts of this machine can use it, and whoever has this key may run code on all machines of the cluster"
        cure = f"type: chmod 600 {visible(shlex.quote(str(key)))}"
        raise ConfigError(f"{visible(str(key))}: found the mode {mode:04o}, with which {who}; {cure}")
    return Path(folder)


def require_safe_address(address: str, tls: str | None) -> str:
    """Returns the address of a driver as a URL, tcp://host:port or tls://host:port; it may be given without the scheme.

    Raises ConfigError for what is no address, for keys that are missing or not used, and for an address that other machines can reach
    without keys.
    """
    scheme, _, place = address.rpartition("://")
    try:
        host, _port = split_address(place)
        if scheme not in ("", "tcp", "tls"):
            raise ValueError(scheme)
    except ValueError:
        raise ConfigError(f"found {address!r}; expected an address such as tls://studio.local:8786 or tcp://localhost:8786") from None
    if tls is not None:
        require_keys(tls)
    if scheme == "tls" and tls is None:
        raise ConfigError(f"{address}: found no keys; expected the folder that mlx-bulk cluster-keys made: add --tls FOLDER")
    if scheme == "tcp" and tls is not None:
        raise ConfigError(f"{address}: found keys for a connection without encryption; expected tls://{place}, or no --tls")
    if tls is None and not is_loopback(host):
        raise ConfigError(
            f"{address}: found an address that other machines can reach, and no keys: anyone there could send results, or code to workers. "
            f"Make keys with mlx-bulk cluster-keys FOLDER, copy the folder to each machine, and use tls://{place} with --tls FOLDER; or "
            "tunnel: ssh -R 8786:localhost:PORT WORKER mlx-bulk worker tcp://localhost:8786"
        )
    return f"{'tls' if tls is not None else 'tcp'}://{place}"

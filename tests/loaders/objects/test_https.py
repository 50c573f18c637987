"""A store that encrypts: its certificate is checked, by the authorities that the environment names."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from energymon.system.child import Child
from loaders import LoaderError
from loaders.shared.objects.address import ObjectAddress
from loaders.shared.objects.bucket import Bucket
from loaders.shared.objects.keys import ObjectKeys
from loaders.shared.objects.server import find_program

pytestmark = pytest.mark.process


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Make an authority, and beside it the folder of a server with a key and a certificate of that authority."""
    (tmp_path / "server").mkdir()
    ca, key, request = tmp_path / "ca.crt", tmp_path / "ca.key", tmp_path / "request"
    made = ("-newkey", "rsa:2048", "-noenc", "-subj", "/CN=joulefeed test")
    openssl("req", "-x509", *made, "-keyout", str(key), "-out", str(ca))
    openssl("req", *made, "-keyout", str(tmp_path / "server" / "private.key"), "-out", str(request))
    (tmp_path / "extensions").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signed = ("-CA", str(ca), "-CAkey", str(key), "-CAcreateserial", "-extfile", str(tmp_path / "extensions"))
    openssl("x509", "-req", "-in", str(request), *signed, "-out", str(tmp_path / "server" / "public.crt"))
    return ca


def test_a_store_is_read_over_https_where_its_authority_is_trusted_and_refused_by_name_where_not(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ObjectKeys("joulefeed", "not a secret of anybody")
    (tmp_path / "objects" / "bucket").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [str(find_program()), "server", "--certs-dir", str(authority.with_name("server"))]
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
    given |= {"MINIO_ROOT_USER": keys.access_key, "MINIO_ROOT_PASSWORD": keys.secret_key}
    address = ObjectAddress.parse("s3://bucket/set", f"https://127.0.0.1:{port}")
    child = Child([*argv, "--address", f"127.0.0.1:{port}", str(tmp_path / "objects")], env=given)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        with pytest.raises(
            LoaderError, match=rf"certificate of https://127.0.0.1:{port} is not .*UnknownIssuer.*SSL_C"
        ):
            Bucket(address, keys, timeout_s=1).read("object")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        bucket = Bucket(address, keys, timeout_s=20)
        bucket.write("object", b"content")
        assert bytes(bucket.read("object")[0]) == b"content"
    finally:
        child.stop()

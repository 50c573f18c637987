"""A MinIO server, an S3-compatible object store on one address, and the folder that it serves."""

from __future__ import annotations

import http.client
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from joulefeed.server import ServerProcess
from loaders.errors import LoaderError, StreamError
from loaders.mosaic.keys import ObjectKeys
from loaders.mosaic.options import BUCKET, INDEX, PREFIX
from loaders.shared.daemon.programs import ask_playbook, link_file, served_folder

_PROBE_S: Final = 2.0
_LINES: Final = 40
_STATE: Final = ".minio.sys"
_FORMAT: Final = "format.json"


class ObjectServerError(LoaderError):
    """An object server cannot be found, built or started."""


class ObjectServer(ServerProcess):
    """A MinIO server that is ready.

    It listens on its address, and on the loopback addresses of the host or network namespace, which MinIO always adds.
    """

    _name = "MinIO"
    _error = ObjectServerError
    _taken_words = ("port is already in use",)
    _ready_words = "API: http"

    def __init__(self, keys: ObjectKeys, folder: Path, host: str = "127.0.0.1", *, port: int = 0) -> None:
        """Start it and wait until it is ready, with the access key of its administrator.

        It keeps its objects in `folder`, and listens on a numeric address and a port (default: any free one). Raises
        ObjectServerError saying why it did not start.
        """
        self._keys, self._folder = keys, folder.absolute()
        super().__init__(host, port=port)

    @property
    def endpoint(self) -> str:
        """Its URL for clients."""
        return f"http://{self.address}"

    def _command(self) -> list[str]:
        # Builds MinIO where there is none, which takes minutes.
        program = ask_playbook("minio")
        if program is None:
            raise ObjectServerError("playbooks/minio.sh found no MinIO and could not build one; see its messages above")
        return [str(program), "server", "--address", self.address, str(self._folder)]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.temporary),
            "MINIO_ROOT_USER": self._keys.access_key,
            "MINIO_ROOT_PASSWORD": self._keys.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_PROBE_S)
        try:
            connection.request("GET", "/minio/health/cluster")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _last_words(self) -> str:
        return " ".join(self.log_lines(_LINES).split())


@contextmanager
def linked_objects(root: Path) -> Iterator[Path]:
    """Yield a folder with links to the objects of `root`, because a server writes into its folder.

    Raises StreamError where `root` was not prepared to its end, or cannot be linked or copied.
    """
    if not (root / BUCKET / PREFIX / INDEX).is_dir():  # MinIO keeps an object as a folder
        raise StreamError(f"--root {root}: has no MDS shards: expected a folder that `prepare` made to its end")
    with ExitStack() as held:
        try:
            folder = held.enter_context(served_folder(root))
            shutil.copytree(root / BUCKET, folder / BUCKET, copy_function=link_file)
            (folder / _STATE).mkdir()
            shutil.copyfile(root / _STATE / _FORMAT, folder / _STATE / _FORMAT)
        except (OSError, shutil.Error) as error:
            raise StreamError(f"the objects of {root} cannot be linked or copied to serve them: {error}") from error
        yield folder

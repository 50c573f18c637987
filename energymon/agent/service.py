"""The group whose members may read an agent's store and have it read the sensors; energymon.service runs such one."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path
from typing import Final

from energymon.errors import OptionError

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def group_of(name: str, store: Path) -> int:
    """Return the id of a group that is to read a store.

    Raises OptionError where there is no such group, where its members cannot enter the store's folder, and where users
    other than root and this one could put another store or socket there.
    """
    try:
        group = grp.getgrnam(name).gr_gid
    except KeyError:
        raise OptionError(f"--group {name!r}: there is no such group; `groupadd --system {name}` makes it") from None
    given, real = store.absolute().parents, store.resolve().parents
    for folder in dict.fromkeys((*real, *given)):
        try:
            found = folder.stat()
        except OSError as error:
            raise OptionError(f"{folder}: {error.strerror}; expected the folder of --store") from error
        if not found.st_mode & (stat.S_IXGRP if found.st_gid == group else stat.S_IXOTH):
            raise OptionError(f"--group {name}: its members cannot enter {folder}; `chgrp {name}` and `chmod g+x` it")
        if found.st_uid not in (0, os.geteuid()):
            raise OptionError(f"--group {name}: {folder} is another user's; expected a folder of root or of this user")
        # In a folder with the sticky bit others cannot rename the owner's files, but they can add files.
        if found.st_mode & _OTHERS_WRITE and (folder in (real[0], given[0]) or not found.st_mode & stat.S_ISVTX):
            raise OptionError(f"--group {name}: users other than its owner may write {folder}; `chmod go-w` it")
    return group

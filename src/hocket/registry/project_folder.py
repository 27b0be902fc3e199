"""A folder of a project, by a descriptor: its files are read and written without following a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hocket.errors import RegistryUnusable

_GUARDED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 16


class ProjectFolder:
    """An open folder. Names are those of files directly in it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def open_regular(self, name: str, flags: int) -> int:
        """Open a regular file; raise for anything else that has the name."""
        try:
            descriptor = os.open(name, flags | _GUARDED, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._not_regular(name) from error
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise self._not_regular(name)

    def _not_regular(self, name: str) -> RegistryUnusable:
        return RegistryUnusable(f"{self.path}/{name} is not a regular file", "remove it, or change registry_file")

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a file; None if there is none. Raise if it is larger than ``limit``."""
        try:
            descriptor = self.open_regular(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        content = bytearray()
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                content += piece
                if len(content) > limit:
                    text = f"{self.path}/{name} is larger than {limit // 1024**2} MB"
                    raise RegistryUnusable(text, "move it away, or change registry_file")
        return bytes(content)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file so that a reader sees the old content or the new one. For the holder of the lock."""
        unfinished = f"{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=self.descriptor)
        descriptor = self.open_regular(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        self.rename(unfinished, name)

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def inner(self, name: str, *, create: bool = False) -> Iterator[ProjectFolder]:
        """Open a folder in this one."""
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.descriptor)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _GUARDED, dir_fd=self.descriptor)
        try:
            yield ProjectFolder(f"{self.path}/{name}", descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def open_folder(path: str) -> Iterator[ProjectFolder]:
    """Open a folder by its path, which must not lead through a link: it was without links when it was configured."""
    if os.path.realpath(path) != path:
        raise RegistryUnusable(f"{path} leads through a symbolic link", "change registry_file")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _GUARDED)
    try:
        yield ProjectFolder(path, descriptor)
    finally:
        os.close(descriptor)

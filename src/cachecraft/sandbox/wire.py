"""How the trusted side and the server talk, and how a candidate's answer is written: lengths, JSON and plain bytes.

Nothing that arrives is ever unpickled or run. What a candidate writes is read with every length checked.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_HEAD = struct.Struct("<I")
_FRAME = struct.Struct("<II")
_LONGEST_MESSAGE = 64 << 20
_LONGEST_HEADER = 1 << 16
_MOST_FILES = 4
_LONGEST_TEXT = 500


class WireError(Exception):
    """The other side is gone, or what it sent is no message."""


def send(channel: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message and open files; WireError if nobody is there."""
    text = json.dumps(message).encode()
    try:
        if files:
            socket.send_fds(channel, [_HEAD.pack(len(text))], list(files))
        else:
            channel.sendall(_HEAD.pack(len(text)))
        channel.sendall(text)
    except OSError as error:
        raise WireError(str(error)) from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and the files that came with it; WireError if there is none, TimeoutError if it takes long."""
    try:
        head, files, _, _ = socket.recv_fds(channel, _HEAD.size, _MOST_FILES)
        head += _exactly(channel, _HEAD.size - len(head)) if head else b""
        if not head:
            raise WireError("the other side has ended")
        (length,) = _HEAD.unpack(head)
        if length > _LONGEST_MESSAGE:
            raise WireError(f"a message of {length} bytes is too long")
        message = json.loads(_exactly(channel, length))
    except TimeoutError:
        raise
    except (OSError, ValueError) as error:
        raise WireError(str(error)) from error
    return message, list(files)


def _exactly(channel: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = channel.recv(min(length, 1 << 20))
        if not part:
            raise WireError("the other side has ended")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def write_frame(file: int, header: dict[str, Any], blob: bytes = b"") -> None:
    """Append a record to an answer."""
    text = json.dumps(header).encode()
    data = memoryview(_FRAME.pack(len(text), len(blob)) + text + blob)
    while data:
        data = data[os.write(file, data) :]


def read_frames(data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The records of an answer.

    Raises:
        ValueError: It is cut off, or something else.
    """
    place = 0
    while place < len(data):
        if len(data) - place < _FRAME.size:
            raise ValueError("it is cut off")
        text, blob = _FRAME.unpack_from(data, place)
        place += _FRAME.size
        if text > _LONGEST_HEADER or len(data) - place < text + blob:
            raise ValueError("it is cut off")
        try:
            header = json.loads(data[place : place + text])
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(header, dict):
            raise ValueError("a record has no header")
        yield header, data[place + text : place + text + blob]
        place += text + blob


def harmless(text: object, longest: int = _LONGEST_TEXT) -> str:
    """A text or an error from a candidate as one short line of printable characters; "" if it is something else."""
    plain = str(text) if isinstance(text, str | BaseException) else ""
    line = "".join(character if character.isprintable() else " " for character in plain[: longest * 2])
    return " ".join(line.split())[:longest]

"""A service in a process of its own for attacks, its memory, and a client that measures how long others wait."""

import http.client
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def attacked(folder, *options, log=None):
    """(Process, (host, port)) of ``aureole serve`` without an encoder, on a free port."""
    command = [sys.executable, "-m", "aureole", "serve", "--index", folder / "gallery.faiss"]
    command += ["--label-column", "label", "--port", "0", *options]
    with open(log or "/dev/null", "w") as errors:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            found = re.search(r"http://(.+):(\d+)\n", process.stdout.readline())
            assert found, "the service did not start"
            yield process, (found[1], int(found[2]))
        finally:
            process.kill()
            process.communicate()


def peak(process):
    """The peak memory of a process in MB, since its start or the last ``reset_peak``."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def reset_peak(process):
    """Start measuring the peak again; returns the current memory in MB."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return peak(process)


class Honest(threading.Thread):
    """A client that requests one path again and again, and notes how long each response took."""

    def __init__(self, place, path="/healthz", pause=0.02):
        super().__init__(daemon=True)
        self._place, self._path, self._pause = place, path, pause
        self._stopped = threading.Event()
        self.seconds, self.statuses = [], []

    def run(self):
        while not self._stopped.is_set():
            start = time.monotonic()
            connection = http.client.HTTPConnection(*self._place, timeout=60)
            try:
                connection.request("GET", self._path)
                self.statuses.append(connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                self.statuses.append(0)
            finally:
                connection.close()
            self.seconds.append(time.monotonic() - start)
            time.sleep(self._pause)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self.join(90)


def post(place, path, body, timeout=120):
    """(Status, body) of a POST of JSON."""
    connection = http.client.HTTPConnection(*place, timeout=timeout)
    try:
        connection.request("POST", path, body=body, headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def open_sockets(place, count, content, source=None):
    """Connections that have sent some bytes; those that the service refuses are left out."""
    found = []
    for _ in range(count):
        address = None if source is None else (source, 0)
        try:
            connection = socket.create_connection(place, timeout=5, source_address=address)
            connection.sendall(content)
        except OSError:
            continue
        found.append(connection)
    return found


def send_raw(place, content, wait=5.0):
    """What comes back for bytes as they are."""
    with socket.create_connection(place, timeout=wait) as connection:
        connection.sendall(content)
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except (TimeoutError, ConnectionResetError):
            pass
    return found

"""A hub of one repository on this machine, which speaks as much of the hub's protocol as pushing and fetching need."""

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Hub(ThreadingHTTPServer):
    """Holds the files of "owner/name"; ``asked`` lists what was fetched."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.commits = 0

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def commit(self):
        return f"{self.commits:040x}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self):
        path, content = urlsplit(self.path).path, self._content()
        if path == "/api/repos/create":
            self._json({"url": f"{self.server.address}/owner/name", "id": "owner/name"})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [file["path"] for file in json.loads(content)["files"]]
            mode = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self._json({"files": [{"path": file} | mode for file in files]})
        elif "/commit/" in path:
            for line in content.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    file = entry["value"]
                    self.server.files[file["path"]] = base64.b64decode(file["content"])
            self.server.commits += 1
            where = f"{self.server.address}/owner/name/commit/{self.server.commit}"
            self._json({"commitUrl": where, "commitOid": self.server.commit, "success": True})
        else:
            self._json({"error": f"no {path}"}, 404)

    def do_GET(self):
        path = urlsplit(self.path).path
        if path.startswith("/api/models/owner/gated"):
            self._reply(b"", {"X-Error-Code": "GatedRepo"}, 403)
        elif path.startswith("/api/models/owner/absent"):
            self._reply(b"", {"X-Error-Code": "RepoNotFound"}, 404)
        elif path.startswith("/api/models/owner/name/revision/absent"):
            self._reply(b"", {"X-Error-Code": "RevisionNotFound"}, 404)
        elif path.startswith("/api/models/owner/name/tree/"):
            self._json(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": _hash(content)}
                    for name, content in self.server.files.items()
                ]
            )
        elif path.startswith("/api/models/owner/name"):
            names = [{"rfilename": name} for name in self.server.files]
            self._json({"id": "owner/name", "sha": self.server.commit, "siblings": names})
        elif path.startswith("/owner/name/resolve/"):
            name = path.split("/", 5)[-1]
            content = self.server.files.get(name)
            if content is None:
                self._json({"error": "no such file"}, 404)
                return
            if self.command == "GET":
                self.server.asked.append(name)
            self._reply(content, {"ETag": f'"{_hash(content)}"'})
        else:
            self._json({"error": f"no {path}"}, 404)

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, format, *args):
        pass

    def _content(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _json(self, value, status=200):
        self._reply(json.dumps(value).encode(), {"Content-Type": "application/json"}, status)

    def _reply(self, content, headers, status=200):
        self.send_response(status)
        for name, value in (headers | {"X-Repo-Commit": self.server.commit}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _hash(content):
    return hashlib.sha1(content).hexdigest()

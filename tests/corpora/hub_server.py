"""A model hub on this machine: what its client asks about one repository, answered with the hub's own headers."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

REPO = "owner/name"
REVISION = "0123456789" * 4


class Answer(NamedTuple):
    """A refusal: its status, and the headers by which the hub says why."""

    status: int
    code: str = ""
    message: str = ""


class Request(NamedTuple):
    method: str
    name: str
    range: str | None
    token: str | None


@dataclass
class Hub:
    """The repository and how the server behaves; what it was asked. A file named `tree` stands for all that lists."""

    files: Mapping[str, bytes]
    refused: dict[str, Answer] = field(default_factory=dict)
    token: str | None = None
    lost_after: dict[str, int] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    address: str = ""

    def downloads(self) -> list[tuple[str, str | None]]:
        """Files that were asked for, each with the part of it."""
        return [(name, part) for method, name, part, _ in self.asked if method == "GET" and name != "tree"]


def checksum(name: str, content: bytes) -> str:
    if name.endswith((".safetensors", ".parquet")):
        return sha256(content).hexdigest()
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listing(files: Mapping[str, bytes]) -> bytes:
    folders = {name.rpartition("/")[0] for name in files} - {""}
    rows = [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders]
    for name, content in files.items():
        row = {"type": "file", "path": name, "size": len(content), "oid": checksum(name, content)[:40]}
        if len(checksum(name, content)) == 64:
            row["lfs"] = {"oid": checksum(name, content), "size": len(content), "pointerSize": 134}
        rows.append(row)
    return json.dumps(rows).encode()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self):
        self.answer("HEAD")

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):  # what is known of these paths
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
        found = {name: content for name, content in self.hub.files.items() if name in asked}
        self.send("GET", listing(found), {"Content-Type": "application/json"})

    def answer(self, method):
        hub, path = self.hub, urlsplit(self.path).path
        name = "tree" if path.startswith("/api/") else path.split(f"/resolve/{REVISION}/")[-1]
        hub.asked.append(Request(method, name, self.headers["Range"], self.headers["Authorization"]))
        if hub.token and name != "tree" and self.headers["Authorization"] != f"Bearer {hub.token}":
            self.refuse(Answer(401, "GatedRepo", f"Access to model {REPO} is restricted."))
        elif name in hub.refused:
            self.refuse(hub.refused[name])
        elif name == "tree":
            facts, under = {"id": REPO, "sha": REVISION, "siblings": []}, path.partition(REVISION)[2].strip("/")
            found = {name: content for name, content in hub.files.items() if name.startswith(under)}
            said = json.dumps(facts).encode() if "/revision/" in path else listing(found)
            self.send(method, said, {"Content-Type": "application/json"})
        elif name not in hub.files:
            self.refuse(Answer(404, "EntryNotFound", "Entry not found"))
        else:
            self.send(method, hub.files[name], {"ETag": f'"{checksum(name, hub.files[name])}"'}, name)

    def refuse(self, answer):
        self.send_response(answer.status)
        self.send_header("X-Error-Code", answer.code)
        self.send_header("X-Error-Message", answer.message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, method, content, headers, name=""):
        first, last = 0, len(content) - 1
        if part := self.headers["Range"]:
            begin, _, end = part.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
        self.send_response(206 if part else 200)
        headers = headers | {"X-Repo-Commit": REVISION, "Content-Length": str(last + 1 - first)}
        if part:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if method == "GET":
            end = first + self.hub.lost_after.pop(name, len(content))
            self.wfile.write(content[first : min(end, last + 1)])
            self.close_connection = True

    def log_message(self, *words):
        pass


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

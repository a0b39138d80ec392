"""A stand-in for the Hugging Face Hub: the endpoints that huggingface_hub calls to push and pull, without Xet."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"


class Hub:
    """Repositories in memory, and a log of requests; `breaks` is how many downloads of a file end after 200 bytes."""

    def __init__(self) -> None:
        self.repos: dict[str, list[dict[str, bytes]]] = {}  # commits of each repository, oldest first
        self.private: set[str] = set()
        self.blobs: dict[str, bytes] = {}  # by sha256
        self.log: list[str] = []
        self.breaks: dict[str, int] = {}
        self.fails: dict[str, int] = {}  # status by "METHOD pattern"

    def __enter__(self) -> "Hub":
        class Handler(_Handler):
            hub = self

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo: str) -> dict[str, bytes]:
        return self.repos[repo][-1]

    def commit_of(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """(sha, files) of main or a commit."""
        commits = self.repos[repo]
        shas = [hashlib.sha1(f"{repo} {place}".encode()).hexdigest() for place in range(len(commits))]
        found = len(commits) - 1 if revision == "main" else shas.index(revision) if revision in shas else None
        return None if found is None else (shas[found], commits[found])


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: Any = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, code: str) -> None:
        self.reply(status, {"error": code}, X_Error_Code=code, X_Error_Message=code)

    def handle_any(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.log.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        for pattern, status in hub.fails.items():
            if re.search(pattern, hub.log[-1]):
                return self.reply(status, {"error": "as the test wants"})
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.command == "PUT" and path.startswith("/lfs/"):
            hub.blobs[path[5:]] = body
            return self.reply(200)
        if self.command == "POST" and not is_known:
            return self.refuse(401, "Unauthorized")
        for pattern, act in self.ROUTES.items():
            if found := re.fullmatch(pattern, f"{self.command.replace('HEAD', 'GET')} {path}"):
                repo = found.groupdict().get("repo")
                if repo is not None and (repo not in hub.repos or (repo in hub.private and not is_known)):
                    return self.refuse(404 if is_known else 401, "RepoNotFound")
                return act(self, body, **found.groupdict())
        return self.reply(404, {"error": "no such address"})

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.hub.repos:
            return self.reply(409, {"url": f"{self.hub.url}/{repo}"})
        self.hub.repos[repo] = [{".gitattributes": b""}]
        if asked.get("private") or asked.get("visibility") == "private":
            self.hub.private.add(repo)
        return self.reply(200, {"url": f"{self.hub.url}/{repo}"})

    def yaml(self, _: bytes) -> None:
        self.reply(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, repo: str) -> None:
        files = [
            {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(".npy") else "regular",
             "shouldIgnore": False, "oid": None}
            for one in json.loads(body)["files"]
        ]  # fmt: skip
        self.reply(200, {"files": files})

    def batch(self, body: bytes, repo: str) -> None:
        objects = []
        for one in json.loads(body)["objects"]:
            upload = {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}}
            objects.append({"oid": one["oid"], "size": one["size"]} | ({} if one["oid"] in self.hub.blobs else upload))
        self.reply(200, {"transfer": "basic", "objects": objects})

    def commit(self, body: bytes, repo: str) -> None:
        files = dict(self.hub.files(repo))
        for line in body.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        self.hub.repos[repo].append(files)
        sha = self.hub.commit_of(repo, "main")[0]
        self.reply(200, {"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{repo}/commit/{sha}"})

    def info(self, _: bytes, repo: str, revision: str = "main") -> None:
        found = self.hub.commit_of(repo, revision)
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        siblings = [{"rfilename": name, "size": len(content)} for name, content in found[1].items()]
        return self.reply(200, {"id": repo, "sha": found[0], "siblings": siblings, "tags": [], "private": False})

    def resolve(self, _: bytes, repo: str, revision: str, name: str) -> None:
        found = self.hub.commit_of(repo, revision)
        if found is None or name not in found[1]:
            return self.refuse(404, "EntryNotFound")
        content = found[1][name]
        start = int(re.match(r"bytes=(\d+)-", self.headers["Range"])[1]) if "Range" in self.headers else 0
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": found[0]}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.command == "GET" and self.hub.breaks.get(name):
            self.hub.breaks[name] -= 1
            self.send_response(206 if start else 200)
            for key, value in {**headers, "Content-Length": str(len(content) - start)}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content[start : start + 200])
            self.close_connection = True
            return None
        return self.reply(206 if start else 200, content[start:], **headers)

    REPO = r"(?P<repo>[^/]+/[^/]+)"
    ROUTES = {  # noqa: RUF012
        r"POST /api/repos/create": create,
        r"POST /api/validate-yaml": yaml,
        rf"POST /api/models/{REPO}/preupload/main": preupload,
        rf"POST /{REPO}\.git/info/lfs/objects/batch": batch,
        rf"POST /api/models/{REPO}/commit/main": commit,
        rf"GET /api/models/{REPO}/revision/(?P<revision>[^/]+)": info,
        rf"GET /api/models/{REPO}": info,
        rf"GET /{REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)": resolve,
    }

"""Two web servers as download.sh meets them: a model hub and the storage that it redirects to.

The hub answers HEAD and GET on /ORG/NAME/resolve/REVISION/FILE as huggingface.co does: a big file with a 302 to a
signed link of the storage, whose X-Linked-Etag is the SHA-256; a small one with a 307 to /api/resolve-cache/... on
the same host, whose query must be kept and whose ETag is the git SHA-1. The storage knows ranges, signed links that
run out, and an ETag that is a hash of something else. It refuses a request with an Authorization header, as S3 does.

Every request is logged. Faults are queued: a fault in `storage_faults` is used up by one GET of the storage; a hook in
`hooks` sees each request to the hub and may answer in its place.
"""
import gzip
import hashlib
import http.server
import itertools
import json
import socket
import ssl
import threading
import time
import urllib.parse


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def answer(status, headers=(), body=b""):
    return status, dict(headers), body


class Request:
    def __init__(self, handler, where):
        self.where, self.method = where, handler.command
        self.path, _, self.query = handler.path.partition("?")
        self.headers = handler.headers
        self.range = handler.headers.get("Range")
        self.token = handler.headers.get("Authorization")

    @property
    def name(self):
        return self.path.rsplit("/", 1)[-1]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    counter = itertools.count()

    def log_message(self, *_):
        pass

    def do_GET(self):
        request = Request(self, self.server.where)
        with self.server.world.lock:
            self.server.world.log.append(request)
        reply = self.server.respond(request)
        try:
            self.write(request, *reply)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.close_connection = True

    do_HEAD = do_GET

    def write(self, request, status, headers, body):
        headers = dict(headers)
        fault = headers.pop("fault", "")
        lower = next(self.counter) % 2  # HTTP/2 has small letters, HTTP/1.1 any
        self.send_response_only(status)
        if "Content-Length" not in headers and fault not in ("no-length", "no-head-length", "endless"):
            headers["Content-Length"] = str(len(body))
        headers["Connection"] = "close"
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.lower() if lower else name, value)
        self.end_headers()
        if request.method == "HEAD":
            return
        if fault.startswith("cut"):
            body = body[:len(body) * int(fault[3:]) // 100]
        if fault == "no-length":
            body = body[:len(body) * 4 // 10]
        if fault.startswith("stall"):
            self.wfile.write(body[:len(body) * 4 // 10])
            self.wfile.flush()
            self.server.world.closing.wait(float(fault[5:] or 30))
            return
        self.wfile.write(body)
        for _ in range(64 if fault == "endless" else 0):  # 64 MB more than was announced
            self.wfile.write(bytes(1 << 20))
            self.server.world.sent += 1 << 20


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, world, where, respond, certificate):
        self.world, self.where, self.respond = world, where, respond
        super().__init__(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class World:
    """A hub with one model and its storage; with a certificate (file, key file) both speak https."""

    def __init__(self, model, files, commit="c" * 40, certificate=None):
        self.model, self.commit = model, commit
        self.files = dict(files)
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.log, self.hooks, self.storage_faults = [], [], []
        self.sent = 0                 # bytes beyond what was announced
        self.direct = False           # small files at once, with a weak ETag, instead of a 307
        self.packed = False           # small files gzip-compressed, asked or not
        self.scheme = "https" if certificate else "http"
        self.storage = Server(self, "storage", self.answer_storage, certificate)
        self.hub = Server(self, "hub", self.answer_hub, certificate)
        self.endpoint = "%s://127.0.0.1:%d" % (self.scheme, self.hub.port)

    def close(self):
        self.closing.set()
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    # ---- the hub

    def common(self):
        return {"X-Repo-Commit": self.commit, "RateLimit": '"resolvers";r=2999;t=287',
                "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}

    def answer_hub(self, request):
        for hook in list(self.hooks):
            reply = hook(request)
            if reply:
                return reply
        if request.path.startswith("/api/resolve-cache/"):
            if "etag=" not in request.query:
                return answer(404, {"X-Error-Code": "EntryNotFound"}, b"Entry not found")
            return self.small(request.path.split(self.commit + "/", 1)[-1])
        folder = request.path.rpartition("/tree/%s/" % self.commit)
        if folder[0] == "/api/models/" + self.model:
            return self.list_folder(folder[2])
        start = "/" + self.model + "/resolve/"
        if not request.path.startswith(start):
            return answer(401, {"X-Error-Message": "Invalid username or password."},
                          b'{"error":"Invalid username or password."}')
        revision, _, name = request.path[len(start):].partition("/")
        if revision not in ("main", "v1%2F0", self.commit):
            return answer(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id: " + revision})
        if name not in self.files:
            return answer(404, {**self.common(), "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"},
                          b"Entry not found")
        if name.endswith(".safetensors"):
            return self.big(name)
        if self.direct:
            return self.small(name)
        place = "/api/resolve-cache/models/%s/%s/%s?download=true&etag=%%22%s%%22" % (
            self.model, self.commit, name, git_sha1(self.files[name]))
        return answer(307, {**self.common(), "Location": place}, b"Found. Redirecting to " + place.encode())

    def list_folder(self, folder):
        """JSON as of the API, in which a path stands among other members."""
        found = [{"type": "file", "oid": git_sha1(data), "size": len(data), "path": name}
                 for name, data in self.files.items() if name.startswith(folder + "/")]
        if not found:
            return answer(404, {"X-Error-Code": "EntryNotFound"}, b'{"error":"not found"}')
        return answer(200, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(found).encode())

    def small(self, name):
        data = self.files[name]
        headers = {**self.common(), "ETag": '"%s"' % git_sha1(data), "Content-Type": "text/plain; charset=utf-8"}
        if self.packed:
            headers.update({"ETag": 'W/"%s"' % git_sha1(data), "Content-Encoding": "gzip"})
            data = gzip.compress(data)
        return answer(200, headers, data)

    def big(self, name, **changes):
        data = self.files[name]
        link = self.link(name)
        headers = {**self.common(), "X-Linked-Size": str(len(data)), "X-Linked-Etag": '"%s"' % sha256(data),
                   "Location": link, "Accept-Ranges": "bytes", "X-Xet-Hash": "b" * 64,
                   "Link": '<https://hub.example/api/xet-read-token/%s>; rel="xet-auth"' % self.commit}
        headers.update(changes)
        return answer(302, headers, b"Found. Redirecting to " + link.encode())

    def link(self, name):
        return "%s://localhost:%d/xet-bridge-us/%s?%s" % (self.scheme, self.storage.port, name, urllib.parse.urlencode(
            {"X-Amz-Expires": 3600, "Expires": int(time.time()) + 60, "Signature": "a~b[c]{d}"}))

    # ---- the storage

    def answer_storage(self, request):
        if request.token:
            return answer(400, {"Content-Type": "application/xml"},
                          b"<Error><Message>Only one auth mechanism allowed</Message></Error>")
        fault = ""
        if request.method == "GET":
            with self.lock:
                fault = self.storage_faults.pop(0) if self.storage_faults else ""
        query = urllib.parse.parse_qs(request.query)
        if fault == "expired" or int(query.get("Expires", ["0"])[0]) < time.time():
            return answer(403, {"Content-Type": "application/xml"},
                          b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>")
        if fault.isdigit():
            return answer(int(fault), {}, b"busy")
        data = self.files[request.name]
        if fault == "flip":
            data = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
        headers = {"ETag": '"%s"' % sha256(b"xet" + data), "Content-Type": "application/octet-stream", "fault": fault,
                   "Accept-Ranges": "bytes"}
        if not request.range or fault == "ignore-range":
            return answer(200, headers, data)
        start = int(request.range.split("=")[1].split("-")[0])
        if start >= len(data):
            return answer(416, {"Content-Range": "bytes */%d" % len(data)}, b"<Error><Code>InvalidRange</Code></Error>")
        total = len(data)
        if fault == "wrong-offset":
            start = 0
        if fault == "wrong-total":
            total = 2 * len(data)
        headers["Content-Range"] = "bytes %d-%d/%d" % (start, len(data) - 1, total)
        return answer(200 if fault == "slice-200" else 206, headers, data[start:])

    # ---- what was asked

    def asked(self, where=None, method=None, name=None):
        with self.lock:
            return [r for r in self.log if where in (None, r.where) and method in (None, r.method)
                    and name in (None, r.name)]

    def forget(self):
        with self.lock:
            self.log.clear()


class ConnectProxy:
    """An HTTP proxy that tunnels CONNECT and counts how often."""

    def __init__(self):
        self.count = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.tunnel, args=(client,), daemon=True).start()

    def tunnel(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            more = client.recv(4096)
            if not more:
                return
            head += more
        host, port = head.split()[1].decode().rsplit(":", 1)
        if host not in ("127.0.0.1", "localhost"):
            client.close()
            return
        self.count += 1
        server = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 Connection established\r\nX-Repo-Commit: " + b"e" * 40 + b"\r\n\r\n")
        threading.Thread(target=self.copy, args=(server, client), daemon=True).start()
        self.copy(client, server)

    @staticmethod
    def copy(source, target):
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.socket.close()


def sample_files(seed="1", optional=False):
    """A model's files: small JSON, and weights that look like safetensors; those that a model can lack if wanted."""
    noise = b"".join(hashlib.sha256(b"%d %s" % (i, seed.encode())).digest() for i in range(3125))[:100000 - 24]
    files = {
        "config.json": b'{"architectures": ["Qwen2ForCausalLM"], "seed": "%s"}\n' % seed.encode(),
        "tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE"}}\n' * 40,
        "model.safetensors": (8).to_bytes(8, "little") + b'{"a":{}}' + b"        " + noise,
    }
    if optional:
        files["generation_config.json"] = b'{"do_sample": false}\n'
        files["tokenizer_config.json"] = b'{"chat_template": null}\n'
    return files

"""A local S3 server, of which one request in ten fails."""

from __future__ import annotations

import logging
import random
import urllib.request
from threading import Thread
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SECRET = "Zm9yIHRoZSB0ZXN0cyBvbmx5"


class Server:
    """An S3 server with a bucket. A request works, is refused, or its answer is lost or cut: see ``fate``."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel("CRITICAL")
        self.app, self.fate, self.failed = (
            DomainDispatcherApplication(create_backend_app),
            lambda request: "works",
            0,
        )
        server = make_server("127.0.0.1", 0, self, threaded=True)
        Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        options = {"ACCESS_KEY_ID": "TESTKEYID", "SECRET_ACCESS_KEY": SECRET, "REGION": "us-east-1"}
        options |= {"ENDPOINT_URL": self.url, "ALLOW_HTTP": "true"}
        self.environment = {f"AWS_{name}": value for name, value in options.items()}
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/bucket", method="PUT"))
        draw = random.Random(0)
        self.fate = lambda request: draw.choices(
            ["works", "is refused", "is lost", "is cut"], [27, 1, 1, 1]
        )[0]

    def __call__(self, request: dict[str, Any], start: Any) -> list[bytes]:
        fate = self.fate(request)
        if fate in ("works", "is cut"):
            body = b"".join(self.app(request, start))
            self.failed += fate == "is cut"
            return [body if fate == "works" else body[: len(body) // 2]]
        if fate == "is lost":
            b"".join(self.app(request, lambda *_: None))
        self.failed += 1
        start("503 Slow Down", [("Content-Length", "0")])
        return [b""]

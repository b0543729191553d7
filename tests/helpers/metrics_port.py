"""The metrics of a registry on a port of their own, as the admin endpoint renders them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from dispatch import Telemetry
from dispatch.telemetry.exposition import registry_of, render_metrics


@contextmanager
def expose_metrics(telemetry: Telemetry) -> Iterator[int]:
    """Serve the metrics at ``http://127.0.0.1:PORT/metrics`` on a thread; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = parse_qs(urlsplit(self.path).query).get("name[]", ())
            accept, encoding = (self.headers.get(name, "") for name in ("Accept", "Accept-Encoding"))
            headers, body = render_metrics(registry_of(telemetry), accept, encoding, names)
            self.send_response(200)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()

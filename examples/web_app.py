"""A broker inside a web application: no server besides, and its queue survives the process.

POST /orders publishes and answers at once; a worker in the same process does the work. Run it, and ask it:

    python examples/web_app.py ./data 8000
    curl -d 'one apple' http://127.0.0.1:8000/orders
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import headrace


class App:
    """The application: a broker, a worker, an HTTP server."""

    def __init__(self, directory: str, port: int) -> None:
        self.hr = headrace.open(directory)
        self.orders = self.hr.topic("orders")
        self.handled: list[str] = []
        self.progress = threading.Condition()
        self.hr.worker("orders", group="kitchen", concurrency=2)(self.handle)
        self.hr.start_workers()
        app = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                try:
                    place = app.orders.publish(self.rfile.read(length))
                except headrace.RetryLater as refused:
                    self.send_error(503, str(refused))
                    return
                body = f"order {place.id}\n".encode()
                self.send_response(202)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def handle(self, d: headrace.Delivery) -> None:
        with self.progress:
            self.handled.append(d.text)
            self.progress.notify_all()

    def serve(self) -> None:
        """Until ``close``."""
        self.server.serve_forever()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.hr.close()


def main() -> None:
    app = App(sys.argv[1] if len(sys.argv) > 1 else "./data", int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
    print(f"http://127.0.0.1:{app.server.server_address[1]}/orders")
    try:
        app.serve()
    except KeyboardInterrupt:
        app.hr.close()


if __name__ == "__main__":
    main()

"""Run where JupyterLab is to start: how long until its page is there and a kernel answers. Prints seconds as JSON.

`python usable.py COMMAND …`: the command that starts JupyterLab; address and token are added to it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request


def ask(url: str, token: str, data: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=data, headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


async def one_plus_one(url: str, token: str) -> str:
    """Start a kernel as the page does, and let it add."""
    from tornado.httpclient import HTTPRequest
    from tornado.websocket import websocket_connect

    kernel = json.loads(ask(f"{url}/api/kernels", token, b'{"name": "python3"}'))["id"]
    channels = f"ws{url.removeprefix('http')}/api/kernels/{kernel}/channels?session_id=x"
    line = await websocket_connect(HTTPRequest(channels, headers={"Authorization": f"token {token}"}))
    header = {"msg_id": "1", "username": "", "session": "x", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": "print(1 + 1)", "silent": False, "store_history": False, "user_expressions": {}}
    content |= {"allow_stdin": False, "stop_on_error": True}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    await line.write_message(json.dumps(message | {"channel": "shell", "buffers": []}))
    while True:
        answer = json.loads(await line.read_message())
        if answer["header"]["msg_type"] == "stream":
            return answer["content"]["text"].strip()


def main() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    token, url, began = secrets.token_hex(16), f"http://127.0.0.1:{port}", time.monotonic()
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", f"--IdentityProvider.token={token}"]
    server = subprocess.Popen([*sys.argv[1:], *options], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        while True:
            try:
                page = ask(f"{url}/lab", token)
                break
            except OSError:
                if server.poll() is not None or time.monotonic() - began > 180:
                    sys.exit("JupyterLab does not start")
                time.sleep(0.1)
        there = time.monotonic() - began
        settings = json.loads(ask(f"{url}/lab/api/settings/@jupyterlab/apputils-extension:notification", token))
        answer = asyncio.run(asyncio.wait_for(one_plus_one(url, token), 120))
        told = {"page": there, "kernel": time.monotonic() - began, "answer": answer}
        told |= {"is_lab": b"jupyter-config-data" in page}
        told |= {"fetch_news": settings["schema"]["properties"]["fetchNews"]["default"]}  # as a new reader has it
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    print(f"\n{json.dumps(told)}")  # last, below what the server says as it leaves


if __name__ == "__main__":
    main()

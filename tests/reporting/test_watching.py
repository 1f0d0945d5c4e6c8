"""Watching a run: on this machine only, the page and nothing else, made again when the run has changed and seldom."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.reporting.conftest import budget_run
from typer.testing import CliRunner

from cachecraft.cli import app
from cachecraft.errors import RunError
from cachecraft.reporting.watching import HOST, LEAST_SECONDS, LivePage, Server, watching

pytestmark = pytest.mark.system


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    with watching([folder], 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Server, path: str, host: str = "", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{server.server_port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_serves_the_page_and_its_version_and_nothing_else(tmp_path: Path) -> None:
    with served(budget_run(tmp_path / "run")) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page = ask(server, "/")
        version = f"{server.page.token}-1"
        assert status == 200 and f'data-live="{version}"' in page and "connect-src &#39;self&#39;" in page
        assert json.loads(ask(server, "/state")[1]) == {"version": version, "error": ""}
        for path in ("/run.yaml", "/../run.yaml", "/run.sqlite", "/state/", "/?x"):
            assert ask(server, path)[0] == 404, path
        assert ask(server, "/", host="evil.example")[0] == 403  # a name that was made to point here
        assert ask(server, "/", method="POST")[0] == 501


def test_the_page_is_made_again_when_the_run_changed_and_not_too_often(tmp_path: Path) -> None:
    now = 0.0
    folder = budget_run(tmp_path / "run", finished=False)
    page = LivePage([folder], clock=lambda: now)
    assert page.token != LivePage([folder]).token  # a page of an earlier watcher is not taken for one of ours
    assert page.current()[0] == f"{page.token}-1"
    now += 1000
    assert page.current()[0] == f"{page.token}-1"  # nothing is new
    budget_run(tmp_path / "other")
    (folder / "budgets.json").write_bytes((tmp_path / "other" / "budgets.json").read_bytes())
    version, text = page.current()
    assert version == f"{page.token}-2" and b"Beside other divisions" in text
    (folder / "budgets.json").write_text("{}")
    now += LEAST_SECONDS / 2
    assert page.current()[0] == version  # it changed, but this soon would cost the run its speed
    now += 1000
    whole = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(": : torn")
    assert page.current() == (version, text)  # what cannot be read at this moment leaves the page as it was
    assert "run.yaml cannot be read" in page.error
    now += 1000
    (folder / "run.yaml").write_text(whole)
    assert page.current()[0] == f"{page.token}-3" and page.error == ""


def test_a_browser_leaves_the_port_80_out_of_the_host(tmp_path: Path) -> None:
    with watching([budget_run(tmp_path / "run")], 0) as server:
        assert "localhost" not in server.hosts
        server.server_port = 80
        assert {"localhost", "127.0.0.1", "localhost:80"} <= server.hosts


def test_a_port_that_cannot_be_had_is_said_in_one_sentence(tmp_path: Path) -> None:
    folder = budget_run(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["watch", str(folder), "--port", str(port)])
        assert result.exit_code == 2 and "cannot be used" in " ".join(result.output.split())
    with pytest.raises(RunError, match="70000 does not exist"), watching([folder], 70000):
        pass
    assert CliRunner().invoke(app, ["watch", str(tmp_path)]).exit_code == 2

"""Who is let in, what may be asked for, and one sentence for everything that is wrong at the start."""

from __future__ import annotations

import contextlib
import gzip
import socket
import time
import urllib.request
from pathlib import Path

import dash
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser

from megascope.collectors.reading.store import Store
from megascope.dashboards import endpoints
from megascope.dashboards.app import create_app
from megascope.dashboards.security import is_loopback
from megascope.dashboards.server import background_server, open_server
from megascope.profiler.errors import MegascopeError, UsageError
from support.page_checks import visit

TOKEN = "a-token-that-is-long"


def client_of(app: dash.Dash) -> FlaskClient:
    return app.server.test_client()  # type: ignore[no-any-return]


@pytest.fixture
def store(slow_store: Path) -> Store:
    return Store(slow_store)


def test_a_port_in_use_is_said_in_one_sentence(slow_store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MegascopeError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            open_server(slow_store, port=port)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"host": "0.0.0.0"}, "give a token"),
        ({"host": "::"}, "give a token"),
        ({"port": 70000}, "out of range"),
        ({"token": "short"}, "at least 16"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_opened(
    slow_store: Path, arguments: dict[str, object], part: str
) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        open_server(slow_store, **arguments)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


def test_a_store_or_a_host_that_does_not_exist_is_said(tmp_path: Path, slow_store: Path) -> None:
    with pytest.raises(MegascopeError, match="no store at"):
        open_server(tmp_path / "nothing")
    with pytest.raises(MegascopeError, match=r"Cannot listen on 192\.0\.2\.1"):
        open_server(slow_store, host="192.0.2.1", token=TOKEN, port=0)


def test_closing_twice_does_nothing(slow_store: Path) -> None:
    with background_server(slow_store) as server:
        server.close()


def test_without_the_token_nothing_is_answered(store: Store) -> None:
    client = client_of(create_app(store, token=TOKEN))
    for path in ("/", "/data/heatmap", "/export/sql.csv?q=select+1", "/assets/style.css", "/_dash-layout"):
        assert client.get(path).status_code == 401, path
        wrong = path + ("&" if "?" in path else "?") + "token=wrong"
        assert client.get(wrong).status_code == 401, path
    assert client.post("/_dash-update-component", json={}).status_code == 401


def test_the_token_becomes_a_cookie_that_does_not_contain_it(store: Store) -> None:
    client = client_of(create_app(store, token=TOKEN))
    answer = client.get("/heatmap?segment=forward&token=" + TOKEN)
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/heatmap?segment=forward"
    cookie = answer.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert client.get("/heatmap?segment=forward").status_code == 200
    assert client.get("/_dash-layout").status_code == 200


@pytest.mark.parametrize("token", ["abc+def/ghi==jklmnop", "a b&c=d+e#fghijklmnop", "é" * 20])
def test_the_printed_address_lets_in_whatever_the_token_is(slow_store: Path, token: str) -> None:
    with background_server(slow_store, token=token) as server:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(server.url) as answer:
            assert (answer.status, answer.url) == (200, f"http://127.0.0.1:{server.port}/")


def test_a_link_on_another_site_opens_the_page(browser: Browser, slow_store: Path) -> None:
    with background_server(slow_store, token=TOKEN) as server, visit(browser, server.url) as seen:
        link = f'<a href="{server.url}">the dashboards</a>'
        seen.page.route("http://elsewhere.test/", lambda route: route.fulfill(body=link, content_type="text/html"))
        seen.page.goto("http://elsewhere.test/")
        seen.page.click("a")
        seen.page.wait_for_selector(".banner")


def test_other_host_names_are_refused_on_this_machine(store: Store) -> None:
    client = client_of(create_app(store))
    assert client.get("/", headers={"Host": "127.0.0.1:8321"}).status_code == 200
    assert client.get("/", headers={"Host": "localhost:8321"}).status_code == 200
    assert client.get("/", headers={"Host": "[::1]:8321"}).status_code == 200
    answer = client.get("/", headers={"Host": "evil.example:8321"})
    assert answer.status_code == 403
    assert "evil.example" in answer.get_data(as_text=True)


def test_pages_may_load_nothing_from_elsewhere(store: Store) -> None:
    answer = client_of(create_app(store)).get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self' 'sha256-" in policy
    assert "//" not in policy
    body = answer.get_data(as_text=True)
    assert "https://" not in body
    assert "http://" not in body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", ""])
def test_addresses_that_others_can_reach(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/data/heatmap?rank=x", 400, "rank='x'"),
        ("/data/heatmap?segment=nothing", 400, "no segment 'nothing'"),
        ("/data/spans?rank=4000", 400, "no data of rank 4000"),
        ("/data/scene?moment=1", 422, "no heartbeats"),
        ("/data/curves?run=other", 400, "no run 'other'"),
        ("/export/sql.csv", 400, "no query"),
        ("/export/sql.csv?q=drop+table+x", 400, "Only SELECT"),
    ],
)
def test_an_endpoint_answers_an_error_with_one_sentence(store: Store, path: str, status: int, part: str) -> None:
    answer = client_of(create_app(store)).get(path)
    assert answer.status_code == status
    assert part in answer.get_json()["error"]


def test_the_timeline_is_exported_for_perfetto(store: Store) -> None:
    answer = client_of(create_app(store)).get("/export/timeline.json?rank=5&axis=pp&steps=3")
    assert answer.status_code == 200
    assert "attachment" in answer.headers["Content-Disposition"]
    names = {event["name"] for event in answer.get_json(force=True)["traceEvents"] if event["ph"] == "X"}
    answer.close()
    assert {"forward", "backward", "send_forward", "recv_forward"} <= names


def test_an_export_that_no_viewer_opens_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(create_app(store))
    address = "/export/timeline.json?rank=5&axis=pp&steps=3"
    with client.get(address) as whole:
        spans = sum(event["ph"] == "X" for event in whole.get_json(force=True)["traceEvents"])
    monkeypatch.setattr("megascope.dashboards.endpoints.EXPORTED_SPANS", spans)
    with client.get(address) as just_so:
        assert just_so.status_code == 200
    monkeypatch.setattr("megascope.dashboards.endpoints.EXPORTED_SPANS", spans - 1)
    answer = client.get(address)
    assert answer.status_code == 400
    assert f"{spans} spans; the page exports {spans - 1}" in answer.get_json()["error"]


def test_query_results_come_as_csv_with_empty_fields_for_null(store: Store) -> None:
    answer = client_of(create_app(store)).get("/export/sql.csv?q=SELECT+1+AS+a,+NULL+AS+b,+'x,y'+AS+c")
    assert answer.get_data(as_text=True).splitlines() == ["a,b,c", '1,,"x,y"']


def test_large_answers_are_compressed_for_who_takes_that(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(create_app(store))
    plain = client.get("/data/curves")
    assert "Content-Encoding" not in client.get("/data/curves", headers={"Accept-Encoding": "gzip"}).headers
    monkeypatch.setattr(endpoints, "SQUEEZED_FROM_BYTES", 10)
    squeezed = client.get("/data/curves", headers={"Accept-Encoding": "gzip, br"})
    assert squeezed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(squeezed.data) == plain.data
    for refusing in ({}, {"Accept-Encoding": "gzip;q=0, identity"}):
        assert client.get("/data/curves", headers=refusing).data == plain.data


def temporary_files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(str(entry.readlink()))
    return {one for one in found if one.endswith("(deleted)")}


def test_a_large_answer_that_nobody_reads_waits_in_no_file(slow_store: Path) -> None:
    before = temporary_files()
    with background_server(slow_store) as server, socket.create_connection(("127.0.0.1", server.port)) as reader:
        path = "/_dash-component-suites/plotly/package_data/plotly.min.js"
        reader.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        assert reader.recv(15) == b"HTTP/1.1 200 OK"
        time.sleep(0.5)
        assert temporary_files() <= before

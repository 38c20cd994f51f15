"""Who may talk to the server: token, host names that are answered to, and the headers that keep a page at home."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import cast
from urllib.parse import urlencode

import dash
from flask import Flask, Response, redirect, request

COOKIE = "megascope_token"
_PLAIN = "text/plain; charset=utf-8"


def is_loopback(host: str) -> bool:
    """Whether an address or a name can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _session(token: str) -> str:
    return hashlib.sha256(b"megascope session\0" + token.encode()).hexdigest()


def require_token(server: Flask, token: str) -> None:
    """Answer only to who brings the token: once as ``?token=``, then by a cookie that does not contain it; or in the
    header ``Authorization: Bearer``."""
    session = _session(token)

    @server.before_request
    def check() -> Response | None:
        given = request.args.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            rest = [(name, value) for name, value in request.args.items(multi=True) if name != "token"]
            answer = redirect(request.path + ("?" + urlencode(rest) if rest else ""))
            # Lax, not Strict: a link in a chat or a ticket shall open, and other sites' requests still come without it.
            answer.set_cookie(COOKIE, session, httponly=True, samesite="Lax")
            return Response(answer.get_data(), answer.status, answer.headers)
        bearer = request.headers.get("Authorization", "")  # what a scrape can send, and a browser does not by itself
        if hmac.compare_digest(bearer.encode(), f"Bearer {token}".encode()):
            return None
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), session.encode()):
            return None
        sentence = "This server wants a token: open the address that `megascope serve` printed, with ?token=... in it."
        return Response(sentence, 401, content_type=_PLAIN)


def require_local_names(server: Flask) -> None:
    """Refuse requests for any other host name, so that no web page can reach the server by rebinding its own name."""

    @server.before_request
    def check() -> Response | None:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if is_loopback(name):
            return None
        sentence = f"This server answers on this machine only, not as {name!r}. Start it with --host and --token."
        return Response(sentence, 403, content_type=_PLAIN)


def keep_at_home(app: dash.Dash) -> None:
    """Set the headers that forbid every request to another host, framing, and guessed content types."""
    scripts = " ".join(["'self'", *app.csp_hashes()])
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "frame-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ]
    )

    server = cast("Flask", app.server)

    @server.after_request
    def add(response: Response) -> Response:
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response

"""Who may look, and what a page may do: every answer needs the token and carries a strict policy.

The token comes as a bearer, in the link that the command prints, or in the cookie that the link leaves. Pages
get no script but the package's own, and no address but the server's.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchwright.fleet.tokens import bearer, same

__all__ = ["Guard"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_REFUSAL = "This page needs the link that `patchwright view` printed, with its token.\n"


class Guard:
    """An app behind a token. Example: `Guard(app, token=new_token())`"""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 401 (no token) or 405 (only reading is allowed)."""
        if scope["type"] != "http":
            return
        linked = self._linked(scope)

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if linked:
                    headers.append("set-cookie", self._cookie(scope))
            await send(message)

        answer: ASGIApp = self._app
        if not (linked or self._known(scope)):
            answer = PlainTextResponse(_REFUSAL, 401, {"www-authenticate": "Bearer"})
        elif scope["method"] not in ("GET", "HEAD"):
            answer = PlainTextResponse("Only GET is answered here.\n", 405, {"allow": "GET, HEAD"})
        await answer(scope, receive, headed)

    def _linked(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return scope["path"] == "/" and same(given, self._token)

    def _known(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        if same(bearer(headers.get("authorization", "")), self._token):
            return True
        # Not by `http.cookies`: it drops all cookies where another program of this host left an odd one.
        return same(cookie_parser(headers.get("cookie", "")).get(_name(scope), ""), self._token)

    def _cookie(self, scope: Scope) -> str:
        secure = "; Secure" if scope["scheme"] == "https" else ""
        return f"{_name(scope)}={self._token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _name(scope: Scope) -> str:
    """Cookies are shared by all ports of a host; two viewers must not overwrite each other's."""
    return f"patchwright-view-{(scope.get('server') or ('', 0))[1]}"

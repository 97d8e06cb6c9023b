"""OAuth tokens for `sasl_mechanism: OAUTHBEARER`: read from their source, reused, and renewed in time.

The client asks for a token for each connection, and once more shortly before the session of a connection ends, which is
when its token does: after 85 % of that time at the earliest. A token that says when it expires (a JWT with `exp`) is
reused for 80 % of the time that it had when it was read; any other for a few seconds.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable

from streaming.errors import BadInput, NotAdmitted

OAUTH_TOKEN = "sasl_oauth_token"
"""The setting under `kafka.security` that says where the token is."""

REUSED_SHARE = 0.8
REUSED_S = 5.0
"""So long a token is reused that does not say when it expires: one of many connections that are made together."""


def expires_at_s(token: str) -> float | None:
    """Expiry of a token, in seconds since 1970, from its own claims; None if it has none.

    >>> expires_at_s("e30.eyJleHAiOjkwfQ."), expires_at_s("opaque")
    (90.0, None)
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, TypeError, KeyError):
        return None


class Tokens:
    """The tokens of one client.

    `read`: the token as it is kept now. `clock`: seconds since 1970. Raises BadInput for what can be no token, and
    NotAdmitted for one that has expired; neither quotes it.

    >>> kept = iter(["first", "second"])
    >>> tokens = Tokens(lambda: next(kept), clock=iter([0.0, 1.0, 60.0]).__next__)
    >>> tokens.token(), tokens.token(), tokens.token()
    ('first', 'first', 'second')
    """

    def __init__(self, read: Callable[[], str], clock: Callable[[], float] = time.time) -> None:
        self._read, self._clock = read, clock
        self._held = ""
        self._reused_until_s = float("-inf")

    def token(self) -> str:
        now_s = self._clock()
        if now_s >= self._reused_until_s:
            self._held = self._checked(self._read().strip(), now_s)
        return self._held

    def _checked(self, token: str, now_s: float) -> str:
        setting = f"kafka.security.{OAUTH_TOKEN}"
        if not re.fullmatch(r"[!-~]+", token):
            raise BadInput(
                f"what {setting} leads to is no token: it has spaces or line breaks inside; give the token alone, not "
                "the answer that it came in"
            )
        expires_s = expires_at_s(token)
        if expires_s is not None and expires_s <= now_s:
            raise NotAdmitted(
                f"the token of {setting} expired {now_s - expires_s:,.0f} s ago; see that what keeps it there renews "
                "it (an environment variable cannot be renewed while a run is up: use a file or a command)"
            )
        self._reused_until_s = now_s + (REUSED_S if expires_s is None else REUSED_SHARE * (expires_s - now_s))
        return token

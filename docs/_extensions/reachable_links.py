"""Link check that tells a page that is gone from a host that cannot be reached from here.

A link is broken when its host answers that there is no such page, or when it leads to a place in a
page that the page does not have. When the host does not answer at all (no network, no name server,
a proxy that refuses), nothing is known of the page: the link is listed as ignored, with the reason.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx
from sphinx.builders import linkcheck

#: What `requests` says when there is no connection. A wrong certificate is no such case.
NOT_REACHED = re.compile(
    r"NameResolutionError|NewConnectionError|ProxyError|ConnectTimeoutError|RemoteDisconnected|"
    r"Connection (?:aborted|refused|reset)|Network is unreachable|Max retries exceeded",
)


class LinkCheck(linkcheck.CheckExternalLinksBuilder):
    """Sphinx's link check, for which a host without an answer is no fault of a page."""

    def process_result(self, result: linkcheck.CheckResult) -> None:
        """Note one link, as ignored where its host was not reached."""
        message = result.message
        if result.status == "broken" and "SSLError" not in message and NOT_REACHED.search(message):
            reason = f"host not reached from here ({NOT_REACHED.findall(message)[-1]})"
            result = result._replace(status=type(result.status)("ignored"), message=reason)
        super().process_result(result)


def setup(app: Sphinx) -> dict[str, bool]:
    """Put it in the place of Sphinx's own."""
    app.add_builder(LinkCheck, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Whether this container's process is alive, or ready: exits with 0 or 1, for HEALTHCHECK and compose.

    python health.py alive
    python health.py ready

Asks its port for metrics, which listens from the first moment on. Runs on the bare standard library.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

PATHS = {"alive": "/healthz", "ready": "/readyz"}
TIMEOUT_S = 4.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # Docker may give a container a proxy


def check(question: str, port: str) -> tuple[bool, str]:
    """(whether it is so, what the process says)."""
    try:
        with DIRECT.open(f"http://127.0.0.1:{port}{PATHS[question]}", timeout=TIMEOUT_S) as answer:
            return True, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace").strip()
    except OSError as error:
        return False, str(error)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PATHS:
        sys.exit("usage: health.py alive|ready")
    good, text = check(sys.argv[1], os.environ.get("SESSILE_METRICS_PORT", "9464"))
    print(text)
    sys.exit(0 if good else 1)

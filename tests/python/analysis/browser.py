"""A real browser without a window: what it makes of a page, as a picture, as a document and on paper."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

#: The names under which Chromium goes.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

#: Looks at the page from inside and leaves what it found in an attribute. Colours are looked up as they are painted.
AUDIT = Path(__file__).with_name("audit.js")


class Browser:
    """Chromium, started anew for each look."""

    def __init__(self, profile: Path) -> None:
        found = next((path for name in NAMES if (path := shutil.which(name))), None)
        if found is None:
            pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
        self._program = found
        self._profile = profile

    def _run(
        self, page: Path, *options: str, dark: bool = False, width: int = 1000, height: int = 1200
    ) -> str:
        command = [
            self._program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            # Whatever the page asks of the network fails, and shows.
            "--proxy-server=127.0.0.1:9",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={self._profile}",
            f"--window-size={width},{height}",
            *options,
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def picture(self, page: Path, to: Path, **how: Any) -> Any:
        """The page as it looks, in a file and as an image."""
        image = pytest.importorskip("PIL.Image")
        self._run(page, f"--screenshot={to}", **how)
        return image.open(to).convert("RGB")

    def paper(self, page: Path, to: Path) -> bytes:
        """The page as it is printed."""
        self._run(page, "--no-pdf-header-footer", f"--print-to-pdf={to}")
        return to.read_bytes()

    def audit(self, page: Path, **how: Any) -> dict[str, Any]:
        """What the page has and how it is laid out, as the browser sees it."""
        text = page.read_text(encoding="utf-8")
        # The page itself runs nothing; the copy that is looked at must.
        policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
        assert policy.search(text)
        copy = page.with_suffix(".audited.html")
        script = f"<script>{AUDIT.read_text(encoding='utf-8')}</script>"
        copy.write_text(
            policy.sub("", text, count=1).replace("</body>", f"{script}</body>"), encoding="utf-8"
        )
        document = self._run(copy, "--dump-dom", **how)
        found = re.search(r'data-audit="([^"]*)"', document)
        assert found, document[-2000:]
        audit: dict[str, Any] = json.loads(html.unescape(found[1]))
        return audit

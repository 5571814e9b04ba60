"""Custom components: each folder holds a static skeleton, its style and its script.

Values reach a component as data and become text nodes there; no value is ever put into a template.
Styles and the shared script go into the page's head once, so a value update does not rebuild them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

FOLDER = Path(__file__).parent
BEGIN = 'if (typeof draw === "function") Playground.begin(props, watch, draw);'
NAMES = (
    "header",
    "knobs",
    "strip",
    "curve",
    "step",
    "saver",
    "fields",
    "tree",
    "hypotheses",
    "samples",
    "lessons",
    "drafts",
    "round",
    "payoff",
    "formula",
    "proof",
    "lanes",
    "compare",
    "requests",
    "pool",
    "blocks",
    "memory",
    "recompute",
    "size",
    "sweep",
    "code",
    "lessonlist",
    "table1",
    "worked",
    "compiled",
    "structured",
)


def build(name: str, value: Any, elem_id: str, spec: Any = None) -> gr.HTML:
    """The component of that name; its script reads `spec`, which never changes, as SPEC and defines `draw`.

    It is part of the script and no property, since gradio 6.31 replaces a gr.HTML's properties with every
    update that is skipped (postprocess_update_dict).
    """
    folder = FOLDER / name
    script = (folder / "script.js").read_text(encoding="utf-8")
    return gr.HTML(
        value=value,
        html_template=(folder / "template.html").read_text(encoding="utf-8"),
        js_on_load=f"const SPEC = {json.dumps(spec)};\n{script}\n{BEGIN}",
        apply_default_css=False,
        elem_id=elem_id,
        elem_classes=["pg-component"],
    )


def head() -> str:
    """Style and shared script of all components, for the page's head."""
    sheets = [FOLDER / "page.css", *(FOLDER / name / "style.css" for name in NAMES)]
    style = "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets if sheet.exists())
    script = (FOLDER / "shared.js").read_text(encoding="utf-8")
    return f"<style>\n{style}\n</style>\n<script>\n{script}\n</script>"

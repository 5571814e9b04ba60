"""Start the Decoding Playground: `python app.py`, then open the address it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

from backend import Engine, Trace
from ui import page
from ui.loading import Loader
from ui.presets.settings import load_sampling_presets

RECORDING = Path(__file__).parent / "presets" / "traces" / "first_paint.json"

# What a page holds is kept for an hour after it is closed, so that a laptop that slept finds it again: some
# megabytes each. Of more pages than this, those that were left alone longest are forgotten.
MAX_SESSIONS = 256


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="smollm2-135m", help="catalogue name, Hugging Face id, folder or GGUF file"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto, float32, bfloat16, float16 or int4")
    parser.add_argument("--host", default=None, help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=None, help="port (default: the first free one from 7860)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    loader = Loader(
        lambda progress: Engine.load(
            options.model, device=options.device, precision=options.precision, progress=progress
        )
    )
    loader.start()
    recording = Trace.from_json(RECORDING.read_text(encoding="utf-8")) if RECORDING.exists() else None
    blocks = page.build(loader, recording, load_sampling_presets().values())
    blocks.launch(
        server_name=options.host,
        server_port=options.port,
        head=page.head(),
        footer_links=[],
        ssr_mode=False,
        mcp_server=True,
        state_session_capacity=MAX_SESSIONS,
    )


if __name__ == "__main__":
    main()

"""Makes the recorded runs in presets/traces/ anew: `python -m ui.presets.record`.

Each is run again as its file asks for it, so the settings stay and the format becomes today's.
"""

from __future__ import annotations

from pathlib import Path

from backend import Engine, Trace

FOLDER = Path(__file__).parents[2] / "presets" / "traces"


def main() -> None:
    for path in sorted(FOLDER.glob("*.json")):
        old = Trace.from_json(path.read_text(encoding="utf-8"))
        engine = Engine.load(old.started.model)
        try:
            path.write_text(engine.generate(old.request).to_json() + "\n", encoding="utf-8")
        finally:
            engine.close()


if __name__ == "__main__":
    main()

"""The events of a run as they come in, and what is asked of them everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.events import Event, Finished, Started, TokenDecoded


@dataclass(kw_only=True)
class Log:
    """The events so far, in order."""

    events: list[Event] = field(default_factory=list)

    @property
    def started(self) -> Started | None:
        """None before the run was accepted."""
        return next((event for event in self.events if isinstance(event, Started)), None)

    @property
    def finished(self) -> Finished | None:
        """None while the run goes on."""
        return next((event for event in reversed(self.events) if isinstance(event, Finished)), None)

    @property
    def tokens(self) -> list[TokenDecoded]:
        """Of the first line of output."""
        return [event for event in self.events if isinstance(event, TokenDecoded) and event.sample == 0]

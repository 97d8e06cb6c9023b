"""The examples topic carries committed lake rows to the teacher's ranks, block by block.

Each block goes to every partition of the topic, as one message or in several parts; a partition without rows of the
block gets an empty batch. Where several processes hold a block's rows, each writes its own, in parts of its own, and
the last part, which is empty, is written when all the others are there.

The headers of a message name its block and its part of it, so that a reader knows when a block is complete, and a
publisher that restarts finds where it left off.
"""

from __future__ import annotations

from dataclasses import dataclass

from streaming.errors import BadInput, StreamingError
from streaming.messages.message import RawMessage


@dataclass(frozen=True)
class Header:
    """The headers of one message of the topic. `lake` is the id of the lake that its rows come from; `cut` names what
    cut the block into parts: only those of one cut make up the block."""

    lake: str
    block: int
    first_seq: int
    last_seq: int
    part: int
    parts: int
    cut: str = ""

    def encode(self) -> list[tuple[str, bytes]]:
        return [(name, str(value).encode()) for name, value in vars(self).items()]

    @classmethod
    def decode(cls, message: RawMessage) -> Header:
        """Decode a message's headers; raises StreamingError for a message not written by a publisher of blocks."""
        values = {name: value.decode() for name, value in message.headers if name in cls.__dataclass_fields__}
        cut = values.pop("cut", "")  # messages of before have none
        if absent := [name for name in cls.__dataclass_fields__ if name not in (*values, "cut")]:
            raise StreamingError(
                f"message {message.offset} of topic `{message.topic}`, partition {message.partition}, is no part of a "
                f"block (no header {', '.join(absent)}): another program writes to this topic; give the run an "
                "examples topic of its own (kafka.examples.topic): it is rebuilt from the lake"
            )
        lake = values.pop("lake")
        return cls(lake, **{name: int(value) for name, value in values.items()}, cut=cut)

    def check(self, lake: str, topic: str) -> None:
        """Raise BadInput if the message comes from another lake than `lake`."""
        if self.lake != lake:
            raise BadInput(
                f"topic `{topic}` holds rows of another run (its lake is {self.lake}, this run's {lake}); give this "
                "run an examples topic of its own (kafka.examples.topic): it is rebuilt from the lake"
            )

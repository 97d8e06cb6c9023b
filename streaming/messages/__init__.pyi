from .codecs import END_HEADER, CodecName, ExamplesCodec, RawMessage, by_partition, is_end_marker, make_codec
from .dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, Kind, from_batch, refuse_rows, to_batch, to_json
from .ipc import MAX_MESSAGE_BYTES
from .source import EndOfStream, MessageSource, Source
from .validation import Rules, conform, without

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "END_HEADER",
    "MAX_MESSAGE_BYTES",
    "CodecName",
    "DeadLetter",
    "EndOfStream",
    "ExamplesCodec",
    "Kind",
    "MessageSource",
    "RawMessage",
    "Rules",
    "Source",
    "by_partition",
    "conform",
    "from_batch",
    "is_end_marker",
    "make_codec",
    "refuse_rows",
    "to_batch",
    "to_json",
    "without",
]

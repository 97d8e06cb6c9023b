from .codecs import END_HEADER, CodecName, ExamplesCodec, RawMessage, by_partition, is_end_marker, make_codec
from .dead_letters import (
    DEAD_LETTER_SCHEMA,
    DeadLetter,
    Kind,
    LetterTally,
    counted_as,
    letters_from_batch,
    letters_to_batch,
    letters_to_json,
    refuse_rows,
)
from .ipc import MAX_MESSAGE_BYTES
from .source import EndOfStream, MessageSource, Source
from .validation import RowRules, conform, without_rows

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "END_HEADER",
    "MAX_MESSAGE_BYTES",
    "CodecName",
    "DeadLetter",
    "EndOfStream",
    "ExamplesCodec",
    "Kind",
    "LetterTally",
    "MessageSource",
    "RawMessage",
    "RowRules",
    "Source",
    "by_partition",
    "conform",
    "counted_as",
    "is_end_marker",
    "letters_from_batch",
    "letters_to_batch",
    "letters_to_json",
    "make_codec",
    "refuse_rows",
    "without_rows",
]

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
from .times import PER_MS, Unit, is_time, is_written_time, milliseconds
from .validation import RowRules, bisect, conform, convertible, declarable, without_rows

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "END_HEADER",
    "MAX_MESSAGE_BYTES",
    "PER_MS",
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
    "Unit",
    "bisect",
    "by_partition",
    "conform",
    "convertible",
    "counted_as",
    "declarable",
    "is_end_marker",
    "is_time",
    "is_written_time",
    "letters_from_batch",
    "letters_to_batch",
    "letters_to_json",
    "make_codec",
    "milliseconds",
    "refuse_rows",
    "without_rows",
]

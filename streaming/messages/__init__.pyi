from .avro import parsed_avro
from .codecs import CodecName, Decoded, make_codec
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
from .epochs import LeaderEpochs
from .examples import ExamplesCodec
from .ipc import MAX_MESSAGE_BYTES, read_ipc, write_ipc
from .limits import Limits, row_sizes
from .message import END_HEADER, RawMessage, by_partition, is_end_marker
from .source import EndOfStream, MessageSource, Source
from .times import PER_MS, Unit, is_time, is_written_time, milliseconds
from .undeclared import NewColumns
from .validation import (
    LATEST_EVENT_TIME_MS,
    Refusal,
    Refusals,
    RowRules,
    bisect,
    conform,
    convertible,
    declarable,
    kept_rows,
    nan_as_null,
    without_rows,
)

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "END_HEADER",
    "LATEST_EVENT_TIME_MS",
    "MAX_MESSAGE_BYTES",
    "PER_MS",
    "CodecName",
    "DeadLetter",
    "Decoded",
    "EndOfStream",
    "ExamplesCodec",
    "Kind",
    "LeaderEpochs",
    "LetterTally",
    "Limits",
    "MessageSource",
    "NewColumns",
    "RawMessage",
    "Refusal",
    "Refusals",
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
    "kept_rows",
    "letters_from_batch",
    "letters_to_batch",
    "letters_to_json",
    "make_codec",
    "milliseconds",
    "nan_as_null",
    "parsed_avro",
    "read_ipc",
    "refuse_rows",
    "row_sizes",
    "without_rows",
    "write_ipc",
]

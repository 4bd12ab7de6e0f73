"""The engine under mneme's Python classes; not an interface of its own."""

from collections.abc import Sequence
from typing import Annotated

import numpy
import numpy.typing
from numpy.typing import NDArray


class KvLayerStats:
    """What the method did in one layer."""

    @property
    def dense(self) -> bool:
        """Attends every token."""

    @property
    def achieved_budget(self) -> float:
        """Tokens that one KV head read in one step, mean."""

    @property
    def correction_rate(self) -> float:
        """Share of (step, KV head) whose speculative selection was corrected."""

    @property
    def kept_share(self) -> float:
        """Share of the prompt's tokens kept at the end of prefill."""

class KvSelections:
    """Counts over (step, layer, KV head)."""

    @property
    def made(self) -> int:
        """With the query of the step itself."""

    @property
    def reused(self) -> int:
        """Made in an earlier step."""

    @property
    def checks(self) -> int:
        """Reused ones that a gate checked."""

    @property
    def corrections(self) -> int:
        """Reused ones that a gate corrected."""

    @property
    def correction_rate(self) -> float:
        """corrections / checks; 0 without checks."""

class KvUnits:
    """Units that were selected."""

    @property
    def selected(self) -> int: ...

    @property
    def replaced(self) -> int: ...

    @property
    def turnover(self) -> float:
        """replaced / selected."""

    @property
    def missing(self) -> int:
        """Selected units outside the device cache."""

    @property
    def recalled(self) -> int:
        """Units copied into the device cache."""

    @property
    def host_to_device_bytes(self) -> int:
        """Bytes over the link."""

class KvAudit:
    """Means over the audited (step, layer, KV head)."""

    @property
    def samples(self) -> int: ...

    @property
    def recall(self) -> float:
        """Share of the tokens with the largest true attention that were read."""

    @property
    def mass(self) -> float:
        """True attention probability of the tokens that were read."""

    @property
    def error(self) -> float:
        """Relative L2 error of the attention output."""

class KvMethodStats:
    """What the KV method did for an answer."""

    @property
    def layers(self) -> list[KvLayerStats]:
        """Empty under full attention."""

    @property
    def kv_bytes_per_step(self) -> float:
        """Bytes of KV cache that attention read a step."""

    @property
    def index_bytes_per_step(self) -> float:
        """Bytes of the index that selection read a step."""

    @property
    def kv_bytes_read(self) -> int:
        """By attention, all steps, bytes."""

    @property
    def index_bytes(self) -> int:
        """Held, bytes."""

    @property
    def selections(self) -> KvSelections: ...

    @property
    def units(self) -> KvUnits: ...

    @property
    def dropped_tokens(self) -> int:
        """For good, summed over layers and KV heads."""

    @property
    def prefill_end_seconds(self) -> float: ...

    @property
    def audit(self) -> KvAudit: ...

def recipe_text(method: str, overrides: str) -> str: ...

def recipe_parse(text: str) -> str: ...

def recipe_values(text: str) -> list[tuple[str, str]]: ...

def recipe_fields() -> list[tuple[str, str, str, str, str, str]]: ...

def methods() -> list[tuple[str, str]]: ...

class AnswerSummary:
    """Told with the end of an answer."""

    @property
    def finish_reason(self) -> str: ...

    @property
    def tokens(self) -> int: ...

    @property
    def prefill_seconds(self) -> float: ...

    @property
    def decode_seconds(self) -> float: ...

    @property
    def kv(self) -> KvMethodStats: ...

class Piece:
    """What came of one answer since the last look."""

    @property
    def text(self) -> str: ...

    @property
    def tokens(self) -> list[tuple[int, float, list[tuple[int, float]]]]: ...

    @property
    def end(self) -> AnswerSummary | None: ...

    @property
    def page_reads(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

class Request:
    """One prompt and its answers."""

    def wait(self, for_end: bool) -> None:
        """
        Waits without the GIL for news or the end; Ctrl-C raises KeyboardInterrupt.
        """

    @property
    def ended(self) -> bool: ...

    @property
    def number(self) -> int: ...

    def take(self, choice: int) -> Piece:
        """What came of one answer since the last call."""

    def prompt_tokens(self) -> tuple[int, int]:
        """Tokens of the prompt, and those of them that were cached."""

    def prompt_scores(self) -> tuple[numpy.typing.NDArray[numpy.float32], list[list[tuple[int, float]]]]:
        """
        Log-probabilities of all tokens of the prompt but the first, and the likeliest in their place.
        """

    def cancel(self) -> None:
        """Ends it before the next step."""

class Mailbox:
    """
    Numbers of requests with news, behind a file descriptor for event loops.
    """

    def __init__(self) -> None: ...

    @property
    def fd(self) -> int: ...

    def take(self) -> list[int]: ...

class ModelInfo:
    """What a model is."""

    @property
    def name(self) -> str:
        """As the file calls it; may be empty."""

    @property
    def architecture(self) -> str:
        """"llama", "mistral", "qwen2", "qwen3"."""

    @property
    def file_format(self) -> str:
        """"GGUF v3", "Hugging Face (safetensors)"."""

    @property
    def chat_family(self) -> str:
        """Whose framing of turns is used; "none": plain text."""

    @property
    def context(self) -> int:
        """Tokens that the model was made for."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def layers(self) -> int: ...

class Engine:
    """A model and the thread that steps it for many callers."""

    def __init__(self, model: str, options: dict[str, object]) -> None: ...

    def close(self) -> None: ...

    @property
    def closed(self) -> bool: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def kv_blocks(self) -> int:
        """Blocks of the page pool, of all layers and KV heads."""

    @property
    def kv_blocks_per_page(self) -> int: ...

    def take_kv_events(self) -> list[tuple[bool, int, int | None, list[int]]]:
        """
        Pages of the prefix cache since the last call: stored, hash, parent, tokens.
        """

    @property
    def end_tokens(self) -> list[int]: ...

    def tokenize(self, text: str, special: bool, bos: bool) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int], special: bool) -> str: ...

    def chat_tokens(self, body: str) -> list[int]:
        """Of the messages, tools and so on of a chat request's JSON."""

    def submit(self, prompt: Sequence[int], params: dict[str, object], kv: str | None, stream: bool, score: int | None, mailbox: Mailbox | None) -> Request: ...

    def logits(self, prompt: Sequence[int], begin: int, end: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), writable=False)]: ...

class Answer:
    """One answer of a session."""

    @property
    def text(self) -> str: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def finish_reason(self) -> str: ...

    @property
    def scores(self) -> list[tuple[int, float, list[tuple[int, float]]]]: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def shared_tokens(self) -> int: ...

    @property
    def answer_tokens(self) -> int: ...

    @property
    def prefill_seconds(self) -> float: ...

    @property
    def decode_seconds(self) -> float: ...

    @property
    def kv(self) -> KvMethodStats: ...

class Turn:
    """One turn of the user."""

    def __init__(self, document: str, question: str, system: str) -> None: ...

class SessionStream:
    """An answer of a session, piece by piece."""

    def next(self) -> str | None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def answer(self) -> Answer: ...

class Session:
    """A conversation whose keys and values are kept."""

    def __init__(self, engine: Engine, kv: str | None) -> None: ...

    @staticmethod
    def restore(engine: Engine, path: str) -> Session: ...

    def read(self, turn: Turn) -> None: ...

    def ask(self, turn: Turn, params: dict[str, object], kv: str | None) -> Answer: ...

    def stream(self, turn: Turn, params: dict[str, object], kv: str | None) -> SessionStream: ...

    def fork(self) -> Session: ...

    def save(self, path: str) -> None: ...

    def score(self, text: str, top: int) -> list[tuple[int, float, list[tuple[int, float]]]]: ...

    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), writable=False)]: ...

    def tokens(self) -> list[int]: ...

    def count_tokens(self, turn: Turn) -> int: ...

def version() -> str: ...

def drain(seconds: float) -> bool: ...

def run_program(arguments: Sequence[str]) -> int: ...

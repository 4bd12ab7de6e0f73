"""Large language models over long contexts, with KV cache retrieval and compression.

>>> import mneme
>>> llm = mneme.LLM("models/needle-27m-q8_0.gguf")
>>> session = llm.session()
>>> session.read(open("demo/harbour.txt").read())
>>> print(session.ask("What is the secret number of silver-harbour?").text)
"""

from . import _cuda

_cuda.load()

from . import _core  # noqa: E402
from ._error import Error
from .evaluation import Report, evaluate
from .llm import LLM, Prompt
from .outputs import Chunk, CompletionOutput, KvEvent, RequestOutput, Scores, Stats, TokenLogprob
from .recipe import Recipe, methods
from .sampling import SamplingParams
from .serving import Server, serve
from .session import Session

__version__ = _core.version()

__all__ = [
    "LLM",
    "Chunk",
    "CompletionOutput",
    "Error",
    "KvEvent",
    "Prompt",
    "Recipe",
    "Report",
    "RequestOutput",
    "SamplingParams",
    "Scores",
    "Server",
    "Session",
    "Stats",
    "TokenLogprob",
    "evaluate",
    "methods",
    "serve",
]

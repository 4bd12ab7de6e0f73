"""A model class for lm-evaluation-harness: ``python -m mneme.lm_eval --model mneme --model_args pretrained=...``.

Importing this module registers the class under the name "mneme"; ``python -m mneme.lm_eval`` does so and runs the
harness' own command line. Model arguments are LLM's keywords; ``pretrained`` is the model, ``kv`` a recipe's text with
slashes in place of commas (the harness separates arguments by commas): ``kv=quest:budget=1024/unit=page:32``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

import mneme

# A task's names of the longest answer, as the harness ranks them.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("mneme")
class MnemeLM(TemplateLM):  # type: ignore[misc]
    """Log-likelihoods of given continuations and generated answers, by one LLM.

    Attributes:
        llm: the model.
        max_length: longest sequence, tokens.
        max_gen_toks: of an answer whose task names no number.
    """

    def __init__(
        self,
        pretrained: str,
        kv: str = "full",
        batch_size: int | str = 64,
        max_gen_toks: int = 256,
        max_length: int | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Starts the model.

        Args:
            pretrained: a .gguf file, or a Hugging Face folder.
            kv: a recipe's text with slashes in place of commas.
            batch_size: requests that are submitted together; the engine runs max_num_seqs of them at once.
            max_length: longest sequence, tokens; None: what the model was made for.
            device: "cpu" or "cuda"; "cuda:0" is "cuda".
            options: further keywords of LLM.

        Raises:
            mneme.Error: as LLM.
        """
        super().__init__()
        place: Literal["cpu", "cuda"] = "cuda" if (device or "cpu").startswith("cuda") else "cpu"
        recipe = kv.replace("/", ",")
        self.llm = mneme.LLM(pretrained, kv=recipe, device=place, max_model_len=max_length or 0, **options)
        self.max_length = self.llm.max_model_len
        self.max_gen_toks = max_gen_toks
        self._together = int(batch_size) if str(batch_size).isdigit() else 64
        begins = self.llm.tokenize("", bos=True)
        self._begins = bool(begins)  # sequences of the model begin with a token of their own
        self._prefix = begins or self.llm.eos_token_ids[:1]

    @property
    def eot_token_id(self) -> int:
        """The first token that ends an answer."""
        return self.llm.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What a text without context is scored after."""
        return self._prefix[0]

    @property
    def tokenizer_name(self) -> str:
        """Part of the harness' keys of cached requests."""
        return self.llm.model.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text, after the token that begins a sequence unless it is there or not wanted."""
        tokens = self.llm.tokenize(string, special=True)
        first = self._prefix[:1] if self._begins and add_special_tokens is not False else []
        return tokens if tokens[:1] == first else first + tokens

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text, by the model's framing, special tokens written.

        Args:
            add_generation_prompt: the beginning of an answer follows; False: the last message, which a task began
                (its gen_prefix), is left open.
        """
        body = {"messages": chat_history, "continue_final_message": not add_generation_prompt}
        return self.llm.detokenize(self.llm._engine.chat_tokens(json.dumps(body)), special=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        results = []
        for begin in range(0, len(requests), self._together):
            batch = requests[begin : begin + self._together]
            # The last token of a sequence is scored, and never computed on.
            prompts: list[mneme.Prompt] = [(context + after)[-self.max_length :] for _key, context, after in batch]
            for (key, _context, continuation), scores in zip(batch, self.llm.scores(prompts, top=1)):
                n = min(len(continuation), len(scores))
                greedy = all(
                    top[0][0] == token for top, token in zip(scores.top[-n:], scores.token_ids[-n:], strict=True)
                )
                result = (float(scores.logprobs[-n:].sum()), greedy)
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, result)
                results.append(result)
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, in windows of the context where they are longer."""
        results = []
        for (text,) in (r.args for r in requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            pairs = [(None, *utils.make_disjoint_window(w)) for w in windows]
            results.append(sum(p for p, _ in self._loglikelihood_tokens(pairs)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), results[-1])
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers up to the task's stop strings, computed together."""
        answers: list[str] = []
        for begin in range(0, len(requests), self._together):
            batch = [r.args for r in requests[begin : begin + self._together]]
            params = [self._params(settings) for _, settings in batch]
            prompts: list[mneme.Prompt] = [
                self.tok_encode(text)[-(self.max_length - p.max_tokens) :]
                for (text, _), p in zip(batch, params)
            ]
            for args, output in zip(batch, self.llm.generate(prompts, params)):
                answers.append(output.text)
                self.cache_hook.add_partial("generate_until", args, output.text)
        return answers

    def _params(self, settings: dict[str, Any]) -> mneme.SamplingParams:
        """The harness' generation arguments as SamplingParams."""
        until = settings.get("until") or []
        sampled = settings.get("do_sample", True)
        return mneme.SamplingParams(
            stop=[until] if isinstance(until, str) else list(until),
            max_tokens=int(next((settings[n] for n in LENGTHS if settings.get(n) is not None), self.max_gen_toks)),
            temperature=float(settings.get("temperature", 0.0)) if sampled else 0.0,
            top_p=float(settings.get("top_p", 1.0)),
        )


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())

"""OpenAI's interface to one model: transformers reads requests and writes answers, and states stay between them.

transformers' own app opens any model that a request names, and knows no model types but its own; its handler of chat
requests can be given both the model and the way to generate.
"""

import socket
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Literal

import fastapi
import torch
import uvicorn
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from jinja2 import TemplateError
from openai.types.completion_usage import PromptTokensDetails
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from torch import Tensor
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerateManager, GenerationState

from recurformer.measure.conversation import KeptStates
from recurformer.study.block import Count, Seed, reason_of

SECONDS_TO_END = 3
"""Time that the answers under way have when the server is stopped; a client that reads no more would hold it up."""


class Part(BaseModel):
    """A piece of a message; the model reads no images."""

    type: Literal["text"]
    text: str


class Turn(BaseModel):
    """A message."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[Part] | None = None


class Asked(BaseModel):
    """What transformers takes from a request without a look; it refuses unknown keys itself."""

    model_config = ConfigDict(extra="allow")
    messages: Annotated[list[Turn], Field(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None  # OpenAI's are whole numbers, transformers' must not be


class OpenModel(ModelManager):
    """The one model that requests may name.

    Args:
        name: of the model.
        tokenizer: the model's.
        kept: its states, which stand for it.
    """

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, kept: KeptStates) -> None:
        super().__init__()
        self.name, self.opened = name, (kept, tokenizer)

    def process_model_name(self, model_id: str) -> str:  # type: ignore[override]  # a static method there
        """Return the model's name; no other is served."""
        if model_id != self.name:
            raise HTTPException(404, f"there is no model {model_id!r} here; there is {self.name!r}")
        return self.name

    def load_model_and_processor(self, *names: Any, **named: Any) -> Any:
        """Return what is open."""
        return self.opened


class Answer:
    """An answer as far as it has been told, without the text that stops it.

    Args:
        stops: texts, any of which ends it; transformers' answers have them too.

    Attributes:
        known: tokens of the prompt that a kept state had read.
    """

    def __init__(self, stops: str | Sequence[str] | None) -> None:
        self.stops = (stops,) if isinstance(stops, str) else tuple(stops or ())
        self.known, self.held, self.ended = 0, "", False

    def know(self, tokens: int) -> None:
        """Take note of the tokens that were known."""
        self.known = tokens

    def tell(self, text: str, is_last: bool = False) -> str:
        """Return what may be told when `text` comes; what may be the beginning of a stop is held back."""
        text, self.held = self.held + text, ""
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places or self.ended:
            told, self.ended = "" if self.ended else text[: min(places)], True
            return told
        sizes = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        end = len(text) - (0 if is_last else max(sizes, default=0))
        self.held = text[end:]
        return text[:end]


class Generation(GenerateManager):
    """Generates on one thread, one request after the other.

    Attributes:
        answers: that are under way, by request.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Answer] = {}
        self.ending = False

    def _begin(self, inputs: Any, gen_config: Any, request_id: str) -> dict[str, Any]:
        self.answers[request_id] = answer = Answer(gen_config.stop_strings)
        return {**inputs, "on_known": answer.know, "stopping_criteria": StoppingCriteriaList([self._ends])}

    def _ends(self, input_ids: Tensor, *scores: Any, **named: Any) -> Tensor:
        return torch.full((len(input_ids),), self.ending, dtype=torch.bool, device=input_ids.device)

    def end(self) -> None:
        """End all answers. Python must not end while the thread computes: the process would abort."""
        self.ending = True
        with suppress(TimeoutError):
            self.submit(bool).result(SECONDS_TO_END)

    def generate_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str, response_parser: Any = None
    ) -> Any:
        """As transformers', but a prompt that is too long is refused before the stream begins."""
        model.fit(inputs["input_ids"], gen_config)
        inputs = self._begin(inputs, gen_config, request_id)
        return super().generate_streaming(model, processor, inputs, gen_config, request_id, response_parser)

    async def generate_non_streaming(self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str):
        """As transformers'."""
        inputs = self._begin(inputs, gen_config, request_id)
        return await super().generate_non_streaming(model, processor, inputs, gen_config, request_id)


class Handler(ChatCompletionHandler):
    """transformers' handler; its answers end before a stop, and say how many tokens of a prompt were known.

    Args:
        opened: the model.
        state: knows `generation` alone.
        generation: of all answers.
    """

    def __init__(self, opened: OpenModel, state: GenerationState, generation: Generation) -> None:
        super().__init__(opened, state)
        self.answers = generation.answers

    def _streaming(self, request_id: str, *given: Any, **named: Any) -> fastapi.responses.StreamingResponse:
        response = super()._streaming(request_id, *given, **named)
        response.body_iterator = self._forgotten_at_its_end(request_id, response.body_iterator)
        return response

    async def _forgotten_at_its_end(self, request_id: str, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        try:
            async for part in parts:
                yield part
        finally:  # also where the client leaves
            self.answers.pop(request_id, None)

    async def _non_streaming(self, request_id: str, *given: Any, **named: Any) -> fastapi.responses.JSONResponse:
        try:
            return await super()._non_streaming(request_id, *given, **named)
        finally:
            self.answers.pop(request_id, None)

    def _build_completion(self, request_id: str, content: str, model_id: str, **named: Any) -> dict:  # type: ignore[override]
        answer = self.answers[request_id]
        named["usage"].prompt_tokens_details = PromptTokensDetails(cached_tokens=answer.known)
        return super()._build_completion(request_id, answer.tell(content or "", is_last=True), model_id, **named)

    def _build_chunk_sse(self, request_id: str = "", **named: Any) -> str:  # type: ignore[override]
        answer, is_last = self.answers[request_id], named.get("finish_reason") is not None
        if is_last:
            named["usage"].prompt_tokens_details = PromptTokensDetails(cached_tokens=answer.known)
        if is_last or named.get("content"):
            named["content"] = answer.tell(named.get("content") or "", is_last) or None
        return super()._build_chunk_sse(request_id, **named)


def make_app(name: str, tokenizer: PreTrainedTokenizerBase, kept: KeptStates) -> fastapi.FastAPI:
    """Return the app that answers `/v1/chat/completions` and `/v1/models`; arguments as of `OpenModel`.

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError(f"{name}: its tokenizer has no chat template, so it cannot read chat requests")
    generation, state = Generation(), GenerationState()
    state.get_manager = lambda *_, **named: generation  # type: ignore[method-assign]
    handler = Handler(OpenModel(name, tokenizer, kept), state, generation)
    described = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "recurformer"}

    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(generation.end)

    app = fastapi.FastAPI(title="recurformer", docs_url=None, redoc_url=None, lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: Asked) -> Any:
        body = {"model": name} | asked.model_dump(exclude_unset=True, exclude_none=True)
        return await handler.handle_request(body, f"chatcmpl-{uuid.uuid4().hex}")

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [described]}

    for kind in (HTTPException, RequestValidationError, TemplateError, ValueError, KeyError, TypeError):
        app.add_exception_handler(kind, refused)
    return app


def refused(request: Any, error: Exception) -> fastapi.responses.JSONResponse:
    """Return OpenAI's form of a refusal, in one line."""
    if isinstance(error, HTTPException):
        reason = str(error.detail)
    elif isinstance(error, RequestValidationError):
        first = max(error.errors(), key=lambda error: len(error["loc"]))  # of a value's forms, the one that fits best
        key = ".".join(str(part) for part in first["loc"] if part not in {"str", "list[Part]"})
        is_json = first["type"] != "json_invalid"
        reason = f"{key}: {reason_of(first)}" if is_json else f"the body is no JSON: {first['ctx']['error']}"
    else:
        reason = f"the request cannot be answered ({type(error).__name__}: {' '.join(str(error).split())})"
    answer = {"message": reason, "type": "invalid_request_error", "param": None, "code": None}
    return fastapi.responses.JSONResponse({"error": answer}, getattr(error, "status_code", 400))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that clients can already reach; they wait until the app runs.

    Raises:
        ValueError: the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ValueError(f"--host {host} --port {port}: cannot listen there ({error})") from error


def server(app: fastapi.FastAPI) -> uvicorn.Server:
    """Return the server of an app; `run(sockets=[...])` runs it until a signal, or until its `should_exit` is set."""
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_END))

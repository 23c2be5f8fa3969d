"""OpenAI's interface to one model: transformers reads requests and writes answers, and states stay between them.

transformers' own app opens any model that a request names, and knows no model types but its own; its handler of chat
requests can be given both the model and the way to generate.
"""

import socket
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import fastapi
import uvicorn
from fastapi.exceptions import RequestValidationError
from jinja2 import TemplateError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerateManager, GenerationState, _GenerationCancelled

from recurformer.measure.conversation import KeptStates, longest_text
from recurformer.study.block import Count, Seed, reason_of

SECONDS_TO_END = 3
"""Time that the answers under way have when the server is stopped; a client that reads no more would hold it up."""


class Part(BaseModel):
    """A piece of a message; the model reads no images."""

    type: Literal["text"]
    text: str


class Turn(BaseModel):
    """A message."""

    role: str
    content: str | list[Part] | None = None


class Asked(BaseModel):
    """What transformers takes from a request without a look; it refuses unknown keys itself."""

    messages: Annotated[list[Turn], Field(min_length=1)]
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None


class Generation(GenerateManager):
    """Generates on one thread, one request after the other, from kept states."""

    def __init__(self, kept: KeptStates) -> None:
        super().__init__()
        self.kept = kept

    def generate_streaming(self, model: Any, processor: Any, inputs: Any, gen_config: Any, *rest: Any, **named: Any):
        """As transformers', which calls `generate` of what it takes for the model."""
        self._fit(inputs["input_ids"], gen_config)
        return super().generate_streaming(self, processor, inputs, gen_config, *rest, **named)  # type: ignore[arg-type]

    async def generate_non_streaming(self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str):
        """Likewise."""
        self._fit(inputs["input_ids"], gen_config)
        return await super().generate_non_streaming(self, processor, inputs, gen_config, request_id)  # type: ignore[arg-type]

    def generate(
        self, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **settings: Any
    ) -> Tensor:
        """Write on after a prompt (1, L), unless the client has left while the request waited for its turn."""
        if "streamer" in settings and settings["streamer"]._cancelled.is_set():
            raise _GenerationCancelled
        return self.kept.write(input_ids, generation_config, **settings)

    def _fit(self, ids: Tensor, config: GenerationConfig) -> None:
        """Let the answer end where the model can read no more.

        Raises:
            HTTPException: there is no room for an answer.
        """
        longest, tokens = longest_text(self.kept.model), ids.shape[1]
        if longest is None:
            return
        if tokens >= longest:
            reason = f"the prompt has {tokens} tokens; with an answer it must fit into the model's {longest}"
            raise HTTPException(400, reason)
        config.max_new_tokens = min(config.max_new_tokens or longest, longest - tokens)


class Chat(ChatCompletionHandler):
    """Answers chat requests to one open model, and refuses those that transformers would fail at.

    Args:
        name: of the model.
        tokenizer: the model's.
        kept: states of the model.
    """

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, kept: KeptStates) -> None:
        state = GenerationState()
        state._generate_managers[name] = Generation(kept)
        super().__init__(ModelManager(), state)
        self.opened = name, kept.model, tokenizer

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        """Return the answer, or a stream of its parts.

        Raises:
            HTTPException: the request is not one that can be answered.
        """
        try:
            asked = Asked.model_validate(body)
            biases = asked.model_dump(include={"logit_bias"})  # OpenAI's are whole numbers, transformers' must not be
            return await super().handle_request(body | biases, request_id)
        except ValidationError as error:
            raise HTTPException(400, _reason(error.errors())) from error
        except (TemplateError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise HTTPException(400, f"the request cannot be answered ({reason})") from error

    def _resolve_model(self, body: dict[str, Any]) -> Any:
        if body.get("model", self.opened[0]) != self.opened[0]:
            raise HTTPException(404, f"there is no model {body['model']!r} here; there is {self.opened[0]!r}")
        return self.opened

    def _build_generation_config(self, body: dict[str, Any], *rest: Any, **named: Any) -> GenerationConfig:
        config = super()._build_generation_config(body, *rest, **named)
        if body.get("temperature"):
            config.do_sample = True  # else a checkpoint that says nothing would ignore it
        return config


def _reason(errors: Sequence[Any]) -> str:
    """What is wrong with a request, in one line: of the forms that a value may have, the one that fits best."""
    error = max(errors, key=lambda error: len(error["loc"]))
    key = ".".join(str(part) for part in error["loc"] if part not in {"str", "list[Part]"})
    return f"{key}: {reason_of(error)}"


def make_app(name: str, tokenizer: PreTrainedTokenizerBase, kept: KeptStates) -> fastapi.FastAPI:
    """Return the app that answers `/v1/chat/completions`, `/v1/models` and `/health`; arguments as of `Chat`.

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError(f"{name}: its tokenizer has no chat template, so it cannot read chat requests")
    handler = Chat(name, tokenizer, kept)
    described = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "recurformer"}
    app = fastapi.FastAPI(title="recurformer", docs_url=None, redoc_url=None)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: dict[str, Any]) -> Any:
        return await handler.handle_request(body, f"chatcmpl-{uuid.uuid4().hex}")

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [described]}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(HTTPException)
    def refused(request: Any, error: HTTPException) -> fastapi.responses.JSONResponse:
        return _error(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    def unreadable(request: Any, error: RequestValidationError) -> fastapi.responses.JSONResponse:
        first = error.errors()[0]
        is_json = first["type"] != "json_invalid"
        return _error(400, _reason([first]) if is_json else f"the body is no JSON: {first['ctx']['error']}")

    return app


def _error(status: int, message: str) -> fastapi.responses.JSONResponse:
    """OpenAI's form of a refusal."""
    return fastapi.responses.JSONResponse(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status
    )


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

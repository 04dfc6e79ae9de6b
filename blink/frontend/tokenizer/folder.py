"""Any tokenizer in a local folder, by the package `tokenizers`; conversations by its template, by `jinja2`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.optional import need
from blink.frontend.tokenizer.base import Message
from blink.frontend.tokenizer.packaged import PackagedTokenizer

EXTRA = "tokenizer"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
CONFIG_BYTES_MAX = 1 << 24


class FolderTokenizer(PackagedTokenizer):
    """A Tokenizer (base.py) of a folder with a tokenizer.json. Nothing of the folder is executed but its template.

    The template runs in jinja2's sandbox. Raises InputError for files that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.name, self._folder = folder.name, folder
        package = need("tokenizers", f"the tokenizer in {folder}", EXTRA)
        file = folder / "tokenizer.json"
        try:
            self._tokenizer = package.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises Exception itself
            raise InputError(f"{file}: cannot be read as a tokenizer: {str(error)[:200]}") from None
        self._config = self._read_config()
        self.vocabulary_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        end = self._tokenizer.token_to_id(self._text("eos_token"))
        self.eos_tokens: frozenset[int] = frozenset() if end is None else frozenset({int(end)})
        self._template: Any = None

    def _read_config(self) -> dict[str, Any]:
        file = self._folder / "tokenizer_config.json"
        if not file.is_file():
            return {}
        try:
            if file.stat().st_size > CONFIG_BYTES_MAX:
                raise ValueError(f"larger than {CONFIG_BYTES_MAX} bytes")
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise InputError(f"{file}: is not a JSON object")
        return found

    def _text(self, name: str) -> str:
        value = self._config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """See Tokenizer. A folder without a template gets the contents, each with its role before it."""
        if not messages:
            raise ValueError("messages: an empty list is not allowed; allowed: at least one message")
        source = self._template_source()
        if not source:
            text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return self.encode(text + "assistant:" * add_generation_prompt)
        if self._template is None:
            sandbox = need("jinja2.sandbox", "a chat template", EXTRA).ImmutableSandboxedEnvironment
            environment = sandbox(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _refuse
            self._template = environment.from_string(source)
        names = {name: self._text(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **names
            )  # fmt: skip
        except Exception as error:  # whatever a folder's template does wrong is the messages' fault or the folder's
            raise ValueError(f"messages: the chat template refuses them: {str(error)[:200]}") from None
        return self.encode(text, add_special=False)

    def _template_source(self) -> str:
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        found = self._config.get("chat_template")
        if isinstance(found, list):
            found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
        return found if isinstance(found, str) else ""

    def save_pretrained(self, folder: Path) -> None:
        """See Tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self._folder / name).is_file() and folder.resolve() != self._folder.resolve():
                shutil.copyfile(self._folder / name, folder / name)


def _refuse(message: str) -> None:
    raise ValueError(message)

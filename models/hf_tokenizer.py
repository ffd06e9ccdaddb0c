"""TokenizerFiles out of a Hugging Face folder: tokenizer.json and the settings around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hexgraft.models.checkpoint import TokenizerFiles
from hexgraft.models.errors import CheckpointError, DamagedError
from hexgraft.models.hf_vocabulary import rebuilt_tokenizer
from hexgraft.models.json_file import read_json, read_text
from hexgraft.models.tokenizer import load_tokenizer, require_ids, stop_tokens

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def tokenizer_from_hf(
    folder: Path, config: dict[str, Any], vocab: int, notes: list[str] | None = None
) -> TokenizerFiles:
    """Read the tokenizer of a model folder; `notes` is told where its files disagree.

    `config` is the folder's config.json, `vocab` the rows of the embedding. Stop tokens are those of
    generation_config.json, or else of config.json, and what `stop_tokens` adds. Raises CheckpointError.
    """
    path = folder / "tokenizer.json"
    settings = _optional(folder / "tokenizer_config.json")
    if path.exists():
        tokenizer_json = _unpadded(path)
    else:
        tokenizer_json, unsaid = rebuilt_tokenizer(folder, config, settings)
        settings = unsaid | settings
    tokenizer = load_tokenizer(tokenizer_json, str(path))
    beyond = [number for number in tokenizer.get_added_tokens_decoder() if number >= vocab]
    if beyond:
        tokenizer_json = _without(tokenizer_json, vocab)
        tokenizer = load_tokenizer(tokenizer_json, str(path))
        if notes is not None:
            notes.append(
                f"left out: {len(beyond)} special token{'s' * (len(beyond) > 1)} of its tokenizer that the "
                "model has no row for"
            )
    require_ids(tokenizer.get_vocab(with_added_tokens=True).values(), vocab, str(path))
    special = _special(settings)
    template = _chat_template(folder, settings)
    stops = _named_stops(folder, config)
    if not stops and "eos_token" in special:
        stops = [_id(tokenizer, special["eos_token"], folder)]
    require_ids(stops, vocab, str(folder))
    if notes is not None:
        notes += _disagreements(folder, config, tokenizer, special, stops)
    added = {
        token.content: number
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=template,
        stop_tokens=stop_tokens(stops, added, template),
        bos=_bos(tokenizer, settings, special, folder),
        special=special,
        generation=_generation(folder),
    )


def _generation(folder: Path) -> dict[str, float]:
    """The sampling settings of generation_config.json; greedy where it says so."""
    values = _optional(folder / "generation_config.json")
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    found = {name: float(values[name]) for name in names if _is_number(values.get(name))}
    return found | {"temperature": 0.0} if values.get("do_sample") is False else found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _unpadded(path: Path) -> str:
    """tokenizer.json without the truncation and padding of its training, which would cut prompts."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}", "download it again") from error
    if not isinstance(value, dict) or not (value.get("truncation") or value.get("padding")):
        return text
    return json.dumps(value | {"truncation": None, "padding": None}, ensure_ascii=False)


def _without(tokenizer_json: str, vocab: int) -> str:
    """tokenizer.json without the added tokens beyond the embedding: families share one file among sizes."""
    value = json.loads(tokenizer_json)
    gone = {token["content"] for token in value["added_tokens"] if token["id"] >= vocab}
    value["added_tokens"] = [token for token in value["added_tokens"] if token["id"] < vocab]
    known = value["model"].get("vocab")
    if isinstance(known, dict):
        value["model"]["vocab"] = {token: number for token, number in known.items() if token not in gone}
    return json.dumps(value, ensure_ascii=False)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _special(settings: dict[str, Any]) -> dict[str, str]:
    special: dict[str, str] = {}
    for name in _NAMES:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            special[name] = value
    return special


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja goes before tokenizer_config.json; of several templates the default counts."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text(path)
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict) and item.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is not None and not isinstance(value, str):
        raise DamagedError(f"{folder / 'tokenizer_config.json'}: chat_template is not a string")
    return value


def _named_stops(folder: Path, config: dict[str, Any]) -> list[int]:
    """The stop tokens of generation_config.json, or else of config.json."""
    generation = folder / "generation_config.json"
    return _stops_in(generation, _optional(generation)) or _stops_in(folder / "config.json", config)


def _stops_in(path: Path, values: dict[str, Any]) -> list[int]:
    value = values.get("eos_token_id")
    stops = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(stop, int) and not isinstance(stop, bool) for stop in stops):
        raise DamagedError(f"{path}: eos_token_id is neither a token id nor a list of them")
    return list(stops)


def _disagreements(
    folder: Path, config: dict[str, Any], tokenizer: Tokenizer, special: dict[str, str], stops: list[int]
) -> list[str]:
    """Where the folder's JSON files name different stop or BOS tokens."""
    found = []
    generation = _optional(folder / "generation_config.json")
    own = config.get("eos_token_id")
    listed = _stops_in(folder / "config.json", config)
    if generation.get("eos_token_id") is not None and not set(listed) <= set(stops):
        found.append(f"config.json stops at {own}, generation_config.json at {stops}: taken are {stops}")
    eos = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    if eos is not None and eos not in stops:
        found.append(
            f"tokenizer_config.json's eos_token is {eos}, the model stops at {stops}: taken are {stops}"
        )
    bos = tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None
    named = config.get("bos_token_id")
    if isinstance(named, int) and bos is not None and bos != named:
        found.append(
            f"config.json begins texts with {named}, the tokenizer with {bos}: taken is the tokenizer's"
        )
    return found


def _bos(tokenizer: Tokenizer, settings: dict[str, Any], special: dict[str, str], folder: Path) -> int | None:
    """The token put first: add_bos_token decides where it is given, else the post-processor."""
    wanted = settings.get("add_bos_token")
    if wanted is False or (wanted is True and "bos_token" in special):
        return _id(tokenizer, special["bos_token"], folder) if wanted else None
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    leading = full[: next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)]
    if len(leading) > 1:
        raise DamagedError(f"{folder / 'tokenizer.json'} puts {len(leading)} tokens before a text, not one")
    return leading[0] if leading else None


def _id(tokenizer: Tokenizer, token: str, folder: Path) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise DamagedError(f"{folder / 'tokenizer_config.json'} names {token!r}, which tokenizer.json lacks")
    return int(number)

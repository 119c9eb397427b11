"""`tvmopt generate FILE.tvmopt`: text from a compiled decoder, as it is computed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tvmopt.cli.common import many_threads, out, parse_inputs, print_json
from tvmopt.errors import InputError
from tvmopt.texts import printable, threads_of, whole_number

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def command(
    model: Annotated[str, typer.Argument(help="The file that `tvmopt compile` wrote.", metavar="ARTIFACT")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="The text to go on from; needs --tokenizer; repeatable.")
    ] = None,
    tokens: Annotated[list[str] | None, typer.Option(metavar="1,15,27", help="The same as tokens; repeatable.")] = None,
    sequences: Annotated[
        int | None, typer.Option(min=1, help="Of several prompts, so many at a time.", show_default="all, up to 8")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="tokenizer.json", help="The model's tokenizer (package tokenizers).")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="End behind so many tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: always the token with the highest score.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the highest scores only; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the highest scores that add up to this share.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the drawing.", show_default="another in each run")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TOKEN", help="End behind this token, a number or </s>; repeatable.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Room for so many tokens in all.", show_default="the model's")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE.npy|FILE.npz",
            help="What the decoder looks at besides its own text, or what --encoder reads; repeatable.",
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="ARTIFACT", help="The compiled encoder of a decoder that looks at its output.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="as compiled")] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="0-3|node0", help="The processors to run on, or those of a NUMA node.", show_default="all"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print tokens, text and times as JSON.")] = False,
) -> None:
    """Go on from a prompt; print the text as it is computed, and how fast that was. Several are computed together."""
    from tvmopt.generation import generate

    if bool(prompt) == bool(tokens):
        raise InputError("give a prompt.", fix="--prompt TEXT --tokenizer tokenizer.json, or --tokens 1,15,27")
    many_threads(threads, cores)
    prompts: list[str | list[int]] = [*map(_numbers, tokens or ()), *(prompt or ())]
    words: dict[str, Any] = {
        "tokenizer": tokenizer, "max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "seed": seed, "stop": stop or [], "max_length": max_length, "threads": threads, "cores": cores,
    }  # fmt: skip
    if len(prompts) > 1 or sequences is not None:
        if inputs or encoder:
            raise InputError("a decoder beside an encoder takes one prompt here.", fix="give one, without --sequences")
        _several(model, prompts, sequences, words, as_json)
        return

    def show(piece: str) -> None:
        sys.stdout.write(printable(piece))
        sys.stdout.flush()

    found = generate(
        model, prompts[0], inputs=parse_inputs(inputs or []), encoder=encoder, on_piece=None if as_json else show,
        **words,
    )  # fmt: skip
    if as_json:
        rates = {"prefill_tokens_per_second": found.prefill_rate, "step_tokens_per_second": found.step_rate}
        print_json({**vars(found), **rates})
        return
    print()
    out.print(
        f"[dim]prompt {len(found.prompt)} tokens, {found.prefill_rate:.1f}/s; then {len(found.tokens)} tokens, "
        f"{found.step_rate:.1f}/s; {threads_of(found.threads)}[/]"
    )


def _several(
    model: str, prompts: list[str | list[int]], sequences: int | None, words: dict[str, Any], as_json: bool
) -> None:
    """Print each text behind its prompt's number, and how fast all were."""
    from tvmopt.generation import generate_texts

    found = generate_texts(model, prompts, sequences=sequences, **words)
    if as_json:
        print_json({**vars(found), "tokens_per_second": found.rate})
        return
    for number, (tokens, text) in enumerate(zip(found.tokens, found.texts, strict=True), 1):
        sys.stdout.write(printable(f"{number}: {text or ' '.join(map(str, tokens))}\n"))
    sys.stdout.flush()
    out.print(
        f"[dim]{len(found.prompts)} prompts, {found.sequences} at a time; {sum(map(len, found.tokens))} tokens, "
        f"{found.rate:.1f}/s with the prompts; {threads_of(found.threads)}[/]"
    )


def _numbers(text: str) -> list[int]:
    found = [whole_number(part.strip()) for part in text.split(",")]
    numbers = [0 if part.strip() == "0" else n for part, n in zip(text.split(","), found, strict=True)]
    if any(n is None for n in numbers):
        raise InputError(f"{text!r} is no list of tokens.", where="--tokens", fix="--tokens 1,15,27")
    return [n for n in numbers if n is not None]

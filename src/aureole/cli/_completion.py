"""Completion: a script for a shell, made from the commands once, so that no Python runs at a Tab."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """An option: its spellings, whether a value follows, what that may be where it is one of a few, and its help."""

    names: tuple[str, ...]
    valued: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Verb:
    """A command by its words, such as "index build": the words that may follow, each with its help, and its options."""

    path: str
    words: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]


def read_verbs(command: Any, path: str = "") -> list[Verb]:
    """A command of click, as ``typer.main.get_command`` makes it, and all below it.

    Examples
    --------
    >>> import typer
    >>> from typing import Literal
    >>> shop = typer.Typer(add_completion=False)
    >>> @shop.command(help="Find items.")
    ... def find(rank: Literal["near", "far"] = typer.Option("near", help="The order.")): ...
    >>> @shop.callback()
    ... def _(): ...
    >>> verbs = read_verbs(typer.main.get_command(shop))
    >>> [(verb.path, verb.words) for verb in verbs]
    [('', (('find', 'Find items.'),)), ('find', ())]
    >>> verbs[1].options[0]
    Option(names=('--rank',), valued=True, choices=('near', 'far'), help='The order.')
    """
    context = command.make_context(path, [], resilient_parsing=True)
    options = [
        Option(
            (*param.opts, *param.secondary_opts),
            not (param.is_flag or param.count),
            tuple(i.value for i in param.shell_complete(context, "") if i.type == "plain"),
            _line(param.help),
        )
        for param in command.params
        if param.param_type_name == "option" and not param.hidden
    ]
    options.append(Option(("--help",), False, (), "Show what it does."))
    below = {n: c for n, c in getattr(command, "commands", {}).items() if not c.hidden}
    words = tuple((name, _line(one.get_short_help_str(80))) for name, one in below.items())
    found = [Verb(path, words, tuple(options))]
    for name, one in below.items():
        found += read_verbs(one, f"{path} {name}".strip())
    return found


def completion_script(shell: str, program: str, verbs: Iterable[Verb]) -> str:
    """What makes "bash", "zsh" or "fish" complete a program: its verbs, options and choices; files for the rest.

    Examples
    --------
    >>> verbs = [Verb("", (("find", "Find items."),), ()), Verb("find", (), ())]
    >>> print(completion_script("fish", "shop", verbs).splitlines()[-1])
    complete -c shop -n "__shop_at ''" -f -a find -d 'Find items.'
    """
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return made(program, list(verbs))


def _bash(program: str, verbs: list[Verb]) -> str:
    chosen, valued = _values(verbs)
    lines = [
        f"# completion of {program} for bash; made once, so print it again after an upgrade",
        f"_{program}_completion() {{",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb='' words='' i",
        "    if [[ $word == = ]]; then",  # --option=, which bash takes for two words
        "        word=''",
        "    elif [[ $before == = ]]; then",
        "        before=${COMP_WORDS[COMP_CWORD-2]}",
        "    fi",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "$verb ${COMP_WORDS[i]}" in',
        f'            {_steps(verbs)}) verb="${{verb:+$verb }}${{COMP_WORDS[i]}}" ;;',
        "        esac",
        "    done",
        "    COMPREPLY=()",
        '    case "$verb $before" in',
        *(f"        {case}) words={shlex.quote(' '.join(choices))} ;;" for case, choices in chosen),
        f"        {valued}) return ;;" if valued else "",  # by default, files
        "        *)",
        '            case "$verb|$word" in',
    ]
    for verb in verbs:
        names = " ".join(name for option in verb.options for name in option.names)
        lines.append(
            f"                {shlex.quote(f'{verb.path}|')}-*) words={shlex.quote(names)} ;;"
        )
    for verb in verbs:
        if verb.words:
            words = " ".join(name for name, _ in verb.words)
            lines.append(
                f"                {shlex.quote(f'{verb.path}|')}*) words={shlex.quote(words)} ;;"
            )
    lines += [
        "            esac ;;",
        "    esac",
        '    [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        f"complete -o default -F _{program}_completion {program}",
    ]
    return "\n".join(line for line in lines if line)


def _zsh(program: str, verbs: list[Verb]) -> str:
    chosen, valued = _values(verbs)
    lines = [
        f"#compdef {program}",
        f"# completion of {program} for zsh; made once, so print it again after an upgrade",
        f"_{program}() {{",
        "    local verb='' word before=${words[CURRENT-1]}",
        "    local -a found",
        "    for word in ${words[2,CURRENT-1]}; do",
        '        case "$verb $word" in',
        f'            ({_steps(verbs)}) verb="${{verb:+$verb }}$word" ;;',
        "        esac",
        "    done",
        '    case "$verb $before" in',
        *(
            f"        ({case}) compadd -- {shlex.join(choices)}; return ;;"
            for case, choices in chosen
        ),
        f"        ({valued}) _files; return ;;" if valued else "",
        "    esac",
        '    case "$verb|${words[CURRENT]}" in',
    ]
    for verb in verbs:
        described = [f"{n}:{o.help}" for o in verb.options for n in o.names]
        where = shlex.quote(f"{verb.path}|")
        lines.append(
            f"        ({where}-*) found=({shlex.join(described)}); _describe -o option found ;;"
        )
    for verb in verbs:
        if verb.words:
            described = [f"{name}:{help}" for name, help in verb.words]
            where = shlex.quote(f"{verb.path}|")
            lines.append(
                f"        ({where}*) found=({shlex.join(described)}); _describe verb found ;;"
            )
    lines += [
        "        (*) _files ;;",
        "    esac",
        "}",
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }",
        f"compdef _{program} {program}",
    ]
    return "\n".join(line for line in lines if line)


def _fish(program: str, verbs: list[Verb]) -> str:
    lines = [
        f"# completion of {program} for fish; made once, so print it again after an upgrade",
        f"function __{program}_at",
        "    set -l verb ''",
        "    for word in (commandline -opc)",
        '        switch "$verb $word"',
        f"            case {_steps(verbs, ' ')}",
        '                set verb (string trim -- "$verb $word")',
        "        end",
        "    end",
        '    test "$verb" = "$argv[1]"',
        "end",
        f"complete -c {program} -e",
    ]
    for verb in verbs:
        start = f"complete -c {program} -n \"__{program}_at '{verb.path}'\""
        for option in verb.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = f" -x -a {_fished(' '.join(option.choices))}" if option.choices else " -r"
            value = value if option.valued else ""
            lines.append(f"{start} {names}{value} -d {_fished(option.help)}")
        lines += [f"{start} -f -a {name} -d {_fished(help)}" for name, help in verb.words]
    return "\n".join(lines)


def _steps(verbs: list[Verb], between: str = "|") -> str:
    """All (verb so far, next word) that make a verb, as a shell's patterns."""
    paths = [verb.path.rpartition(" ") for verb in verbs if verb.path]
    return between.join(shlex.quote(f"{before} {word}") for before, _, word in paths)


def _values(verbs: list[Verb]) -> tuple[list[tuple[str, tuple[str, ...]]], str]:
    """((Pattern, choices) of options that have some, the pattern of those that take anything)."""
    chosen, valued = [], []
    for verb in verbs:
        for option in verb.options:
            cases = [shlex.quote(f"{verb.path} {name}") for name in option.names]
            if option.choices:
                chosen.append(("|".join(cases), option.choices))
            elif option.valued:
                valued += cases
    return chosen, "|".join(valued)


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _fished(text: str) -> str:
    """The text in quotes of fish, which knows two escapes in them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""What `--help` prints: options in groups, then examples and exit codes; plain text that fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from testbed.errors import BadInput, ExitCode

GROUPS = {
    title: tuple(f"--{name}" for name in names.split())
    for title, names in {
        "What is trained": "schedule schedules-from iterations set light robust strict alone control again run trust "
        "show schedules-anew files",
        "What is tried": "delay rate link points within axes microbatch-size memory-limit sequence fixed limit measure "
        "confirm boots seeds quick "
        "begin controller swap-cost slot-noise "
        "noise over repetitions cell list claim predict-only allow-faster beside-mininet engine size",
        "Routes": "policy elephants-from detour enforce case",
        "Events during training": "background event lose arrive depart swap adapt vary rounds",
        "Workers that fail": "checkpoint elastic failure chaos",
        "Where it runs": "interface clock seed vm shaper host-priority wall-limit jobs ray source idle guest-memory",
        "What is shown": "top details memory messages checks recheck order last json format quiet",
        "What is written": (
            "out overwrite picture cdf svg html trace junit markdown write history comms waits baselines reason"
        ),
    }.items()
}
"""The options of all commands, by what they are for."""

_HAPPENS = (*GROUPS["Events during training"], *GROUPS["Workers that fail"])

_OTHERS = "Others"

_NET, _JOB = "two-dc-longhaul", "tiny-gpt-pp4"
EXAMPLES: dict[str, tuple[str, ...]] = {
    "presets": ("testbed presets",),
    "predict": (f"testbed predict {_NET} {_JOB}", "testbed predict my-network.yaml my-job.yaml"),
    "route": ("testbed route nsfnet paper-llama2-13b --policy ecmp --policy greedy",),
    "plan": (f"testbed plan {_NET} {_JOB} -o plan.json",),
    "run": (
        f"testbed run {_NET} {_JOB}",
        f"testbed run {_NET} {_JOB} --clock virtual",
        f"testbed run {_NET} {_JOB} --schedule zb-h1 --schedule 1f1b",
        "testbed run plan.json --out results/again",
    ),
    "wan": ("torchrun --nnodes 4 --node-rank 0 --rdzv-endpoint HOST:29500 -m testbed wan plan.json --out results/wan",),
    "compare-axes": ("testbed compare-axes paper-llama3-405b --picture axes.svg",),
    "calibrate": (f"testbed calibrate {_NET}", f"testbed calibrate {_NET} --engine {_JOB}"),
    "advise": (
        "testbed advise crosspipe-two-dc paper-llama2-13b",
        f"testbed advise {_NET} {_JOB} --axes 4x1x1 --microbatch-size 2 --confirm 1",
    ),
    "tune": (f"testbed tune {_JOB} {_NET}",),
    "study": ("testbed study smoke", "testbed study smoke --set clock=none"),
    "sweep": (f"testbed sweep {_NET} {_JOB} --over links.0.delay=1..80ms/12 --light",),
    "knee": (f"testbed knee {_NET} {_JOB} --schedule geopipe",),
    "adapt": (
        f"testbed adapt {_NET} {_JOB} --schedule crosspipe-greedy --event 'link paris--warsaw delay x4 at 10'",
        f"testbed adapt {_NET} {_JOB} --event 'rank 2 slower x1.5 at 10 to 40' --slot-noise 3",
    ),
    "shell": (
        f"testbed shell {_NET}",
        "testbed shell plan.json --case '1f1b on greedy'",
        f"echo 'paris/0 ping -c 3 warsaw/0' | testbed shell {_NET}",
    ),
    "report": (
        "testbed report results/demo",
        "testbed report results/demo --details",
        "testbed report results/demo --recheck",
        "testbed report results/demo --html demo.html",
        "testbed report results/a results/b --html both.html",
        "testbed report results/demo --trace demo.pftrace",
    ),
    "diverge": ("testbed diverge results/a results/b", "testbed diverge results/a results/b --json"),
    "doctor": ("testbed doctor",),
    "schema": ("testbed schema topology", "testbed schema workload -o workload.schema.json"),
    "test-determinism": (f"testbed test-determinism {_NET} {_JOB} --boots 2 --seeds 2",),
    "show": (f"testbed schedule show {_NET} {_JOB} --svg timelines.svg",),
    "compare": (
        f"testbed schedule compare {_NET} {_JOB}",
        f"testbed schedule compare {_NET} tiny-gpt-variable-length --noise 200",
    ),
    "export": (f"testbed schedule export {_NET} {_JOB} --schedule 1f1b",),
    "validate": (f"testbed schedule validate {_NET} {_JOB} mine.csv",),
    "save": (f"testbed baseline save mine {_NET} {_JOB}", "testbed baseline save mine --run results/demo"),
    "renew": ("testbed baseline renew loop-pp4 --reason 'links are modelled better'",),
    "check": (
        "testbed baseline check --predict-only",
        "testbed baseline check loop-pp4",
        "testbed baseline check --history kept --junit check.xml --write badge=baselines.svg",
    ),
    "history": ("testbed baseline history kept", "testbed baseline history kept loop-pp4 --picture times.svg"),
    "list": ("testbed baseline list",),
    "build": ("testbed kernel build",),
    "start": ("testbed guest start", "testbed guest start --idle 3600s --guest-memory 8GiB"),
    "stop": ("testbed guest stop",),
    "status": ("testbed guest status", "testbed guest status --json"),
    "key": ("testbed kernel key", "testbed kernel key --source 7.2 --json"),
}
"""By name of a command, what a user might type."""

PRINT_TABLES = (
    *(
        "predict",
        "route",
        "run",
        "wan",
        "compare-axes",
        "calibrate",
        "advise",
        "tune",
        "knee",
        "adapt",
        "report",
        "test-determinism",
    ),
    *("compare", "list", "study", "sweep"),
)
"""By name, the commands whose tables can be had in other forms (--format)."""

_MEANS = {
    ExitCode.OK: "success",
    ExitCode.REGRESSION: "a baseline is outside its tolerances, or a claim fails",
    ExitCode.BAD_INPUT: "bad input: nothing was started",
    ExitCode.MACHINE_LACKS: "the machine lacks something: what adds it is said",
    ExitCode.RUN_FAILED: "it failed, or was interrupted; what was measured is kept",
    ExitCode.UNTRUSTED: "it finished and cannot be trusted: the reasons are said",
}
_OFFLINE = (ExitCode.OK, ExitCode.BAD_INPUT, ExitCode.RUN_FAILED)
_LAB = (ExitCode.OK, *(code for code in ExitCode if code >= ExitCode.BAD_INPUT))
_NO_VERDICT = (*_OFFLINE[:2], ExitCode.MACHINE_LACKS, ExitCode.RUN_FAILED)
EXIT_CODES: dict[str, tuple[ExitCode, ...]] = {
    **dict.fromkeys(
        ("run", "wan", "calibrate", "compare-axes", "advise", "knee", "report", "test-determinism", "save", "renew"),
        _LAB,
    ),
    **dict.fromkeys(("shell", "doctor", "build", "start"), _NO_VERDICT),
    "diverge": (*_OFFLINE, ExitCode.UNTRUSTED),
    **dict.fromkeys(("check", "study", "sweep"), tuple(ExitCode)),
}
"""By name of a command, what it may end with; the others as what starts nothing."""

_MOST_LEFT = 26
"""Columns for an option's name before its help begins in the next line."""

_WIDEST = 80

HELP_OPTIONS = ("-h", "--help")


class GroupedCommand(TyperCommand):
    """A command whose help has its options in groups, examples and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises BadInput where an option stands in place of another one's value, which would take it as that.

        And where one that says what happens in a training stands twice, of which the last alone would be taken.
        """
        options = [param for param in self.params if param.param_type_name == "option"]
        names = {name for param in options for name in (*param.opts, *param.secondary_opts)} | {*HELP_OPTIONS}
        valued = {name for param in options if not getattr(param, "is_flag", False) for name in param.opts}
        once = {name for param in options if not param.multiple for name in param.opts if name in _HAPPENS}
        given, words = dict[str, str](), iter(args)
        for word in words:
            if word == "--" or ctx.resilient_parsing:  # the latter: a shell asks how a line may go on
                break
            name, joined, value = word.partition("=")
            if not joined and name in valued and (value := next(words, "")).partition("=")[0] in names:
                raise BadInput.of(ctx.command_path, word, value, "its value: another option stands there")
            if name in once and given.setdefault(name, value) != value:
                raise BadInput.of(ctx.command_path, name, value, f"it once, not beside {given[name]!r}")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, what the command does, arguments, options by group, examples, exit codes."""
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        params: list[Any] = list(self.params)
        arguments = [
            (param.metavar or param.name.upper(), param.help) for param in params if param.param_type_name == "argument"
        ]
        _section(formatter, "Arguments", arguments)
        options = [param for param in params if param.param_type_name == "option" and not param.hidden]
        for title, names in GROUPS.items():
            mine = [param for param in options if max(param.opts, key=len) in names]
            mine.sort(key=lambda param: names.index(max(param.opts, key=len)))
            _section(formatter, title, (param.get_help_record(ctx) for param in mine))
        known = {name for names in GROUPS.values() for name in names}
        rest = [param.get_help_record(ctx) for param in options if max(param.opts, key=len) not in known]
        _section(formatter, _OTHERS, [*rest, (", ".join(HELP_OPTIONS), "Show this message and exit.")])
        with formatter.section("Examples"):
            for line in EXAMPLES.get(str(self.name), ()):
                formatter.write(f"  {_in_lines(line)}\n")
        codes = EXIT_CODES.get(str(self.name), _OFFLINE)
        _section(formatter, "Exit codes", [(str(int(code)), _MEANS[code]) for code in codes])


class HelpfulGroup(TyperGroup):
    """Commands in a group, with the same form of help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, what the commands are for, and each in a line or two."""
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        _section(
            formatter, "Commands", ((str(command.name), _first_sentence(command.help or "")) for command in commands)
        )
        options = [param.get_help_record(ctx) for param in self.params if param.param_type_name == "option"]
        _section(formatter, "Options", [*options, (", ".join(HELP_OPTIONS), "Show this message and exit.")])
        formatter.write_paragraph()
        formatter.write_text(f"`{ctx.command_path} COMMAND --help` has options, examples and exit codes of each.")


def _in_lines(command: str) -> str:
    """A command to be copied, in lines as a shell takes them."""
    if len(command) <= _WIDEST - 2:
        return command
    place = command.rindex(" ", 0, _WIDEST - 4)
    if (option := command.rfind(" --", 0, place + 1)) > 0 and not command[place + 1 :].startswith("--"):
        place = option  # an option stays with its value
    return f"{command[:place]} \\\n      {command[place + 1 :]}"


def _first_sentence(text: str) -> str:
    """Of a command's help what it does."""
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")


def _section(formatter: Any, title: str, rows: Iterable[tuple[str, str] | None]) -> None:
    """A heading and its definitions; nothing where there are none."""
    known = [row for row in rows if row is not None]
    if known:
        with formatter.section(title):
            formatter.write_dl(known, col_max=_MOST_LEFT)

"""DLBS's command lines: their options, and those of a script, which are read as a shell reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferometer.evaluators.plans.dlbs_lines import CommandLine, command_line, command_lines

SCRIPT = r"""#!/bin/sh
export BENCH_ROOT=$( cd $( dirname "$0" ) && pwd )  # the folder
script=./experimenter.py; action=run   # an action
level="warn""ing"
name='a b'
name="$name c" one=1
both=$name; both="${both}"
extension='{"condition": {"a": "\\\\ b"}}'
note="don't # python; python $script run -Pno=1"
if true; then
  python $script $action --log-level=$level   `# it's a comment`\
       -Pexp.framework='"mxnet"'  -Pexp.text="\"\$x ${name} \\\\ \`\""\
       -Vexp.gpus='["0", "0,1"]' -P own.one=$one -Pb='"'"$both"'"' -Pc=\"x#y\" > /dev/null 2>&1
fi
: python $script run -Pno=2
# python $script run -Pno=3
[ "$1" = x ] && { python $script build -Pexp.model=\"$1\" -Pexp.n=${one}${one} --config "a b.json" \
   -E'{"condition": {}}'; } || python "$script" run -Pfirst=1 & wait
A=1 B="2 3" python "$script" validate -Pexp.rank='"'"${1}"'"' --no_validation; echo python experimenter.py;
python other.py run | python $script help
cat <<'END' <<B > /dev/null; python $script build -Pin=2
it's no quote, and no "
python $script run -Pno=4
END
$(echo B)
B
$(command -v python) $script run -E"$extension"
"""


def read(script: str, *arguments: str) -> list[CommandLine | str]:
    found = command_lines(script, arguments, {})
    return [str(each) if isinstance(each, ValueError) else each for each in found]


def test_a_script_has_the_words_that_a_shell_reads(tmp_path: Path) -> None:
    python, log = tmp_path / "python", tmp_path / "log"
    stub = f"import json, sys\nprint(json.dumps(sys.argv[1:]), file=open({str(log)!r}, 'a'))\n"
    python.write_text(f"#!{sys.executable}\n{stub}")
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", SCRIPT, "sh", "x"], env=environment, cwd=tmp_path, check=True)
    called = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    expected = [command_line(words[1:]) for words in called if words[0].endswith("experimenter.py")]

    found = [each for each in command_lines(SCRIPT, ["x"], {}) if isinstance(each, CommandLine)]
    read_only = [each for each in found if "first" not in each.parameters]
    assert read_only == expected
    assert len(found) == len(expected) + 1
    assert read_only[0].parameters == {
        "exp.framework": "mxnet",
        "exp.text": "$x a b c \\ `",
        "own.one": 1,
        "b": "a b c",
        "c": "x#y",
    }


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "rank=$1\n\npython experimenter.py run -Pa.rank=$rank\n",
            'line 3: "$1" has no value without a shell',
        ),
        ("x=$(date '+%d')\npython experimenter.py run -Pa=$x", 'line 2: "$(date +%d)" has no value without'),
        ("x=$(a $(b) c)\npython experimenter.py run -Pa=$x", 'line 2: "$(a $(b) c)" has no value without'),
        ("python experimenter.py run -Pa=`id`", 'line 1: "`id`" has no value without a shell'),
        ("python experimenter.py run -Pa='1", "line 1: a quote is not closed"),
        (
            "python experimenter.py go",
            'line 1: unknown action "go"; experimenter.py has run, build, validate',
        ),
        (
            "python experimenter.py run --confg=a",
            "line 1: unknown argument --confg=a; experimenter.py has -P",
        ),
        ("python experimenter.py run -Pa", "line 1: -P a: is not NAME=JSON, such as exp.model="),
        ("python experimenter.py run -Va=", "line 1: -V a=: is not NAME=JSON"),
        ("python experimenter.py run -Pa=b", "line 1: -P a: b is not JSON: "),
        ("python experimenter.py run -E{", "line 1: -E: { is not JSON: "),
        ("python experimenter.py run --config", "line 1: argument --config: expected one argument"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(script: str, message: str) -> None:
    [found] = read(script)
    assert isinstance(found, str)
    assert found.startswith(message)
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize(
    "script", ["", "ls", "# python experimenter.py run", "echo 'a", "\\", "$(((", "`", '"']
)
def test_a_script_without_a_command_line_has_none(script: str) -> None:
    assert read(script) == []


@pytest.mark.parametrize(
    "script",
    [
        "cat <<-\\A\n\tdon't\n\tA\npython experimenter.py run -Pa=1",
        "cat <<< A\npython experimenter.py run -Pa=1\nA",
        "python experimenter.py run -Pa=1 <<A\npython experimenter.py run -Pb=2\nA 1",
        "(( x = 1 << 2 ))\npython experimenter.py run -Pa=1",
    ],
)
def test_only_a_here_document_is_no_command(script: str) -> None:
    [found] = read(script)
    assert isinstance(found, CommandLine)
    assert found.parameters == {"a": 1}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit", ["a", "a ", "$a", "${", "$(", '"$a" ', "<", "< ", "<<a\n", "#", " #", "`a` ", "\\", "'a'", "1"]
)
def test_the_time_to_read_a_script_does_not_grow_with_its_square(unit: str) -> None:
    assert len(read(unit * 30_000)) <= 1


def test_the_values_of_a_command_line_replace_those_of_its_configuration() -> None:
    line = command_line(
        ["run", "-Pa=2", '-Pb="x"', "-Vv=[3]", '-E{"cases": []}', "--discard-default-config", "--plan", "p"]
    )
    text = '{"parameters": {"a": {"val": 1, "type": "int"}, "c": 1}, "variables": {"v": 1, "w": 2}}'
    assert json.loads(line.applied(text)) == {
        "parameters": {"a": {"val": 2, "type": "int"}, "c": 1, "b": "x"},
        "variables": {"v": [3], "w": 2},
        "extensions": [{"cases": []}],
    }
    assert (line.defaults, command_line(["build"]).defaults) == (False, True)
    for wrong in ("", "[", "[]", "1", '{"parameters": []}', '{"extensions": {}}'):
        assert line.applied(wrong) == wrong


def test_what_builds_no_plan_is_an_action_too() -> None:
    asked = [["--help"], ["print-config", "--log-level=debug"], ["help", "--params", "exp.*"], ["sysinfo"]]
    assert [command_line(each).action for each in asked] == ["help", "print-config", "help", "sysinfo"]
    with pytest.raises(ValueError, match=r'^unknown action "plan"; experimenter\.py has run, build'):
        command_line(["plan"])

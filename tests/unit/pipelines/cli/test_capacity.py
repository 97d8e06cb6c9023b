"""`exfm capacity` as a person uses it."""

from __future__ import annotations

import json

import pytest

from pipelines.cli import console as cli

DEMO = "configs/demo.yaml"


@pytest.fixture
def exfm(capsys):
    """Price a config: (exit code, stdout, stderr)."""

    def call(*arguments: object):
        with pytest.raises(SystemExit) as left:
            cli.main(["capacity", *map(str, arguments)])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def test_every_part_is_priced_with_the_command_that_measures_it(exfm):
    code, out, err = exfm(DEMO, "--impressions-per-s", 1000, "--requests-per-s", 10)
    assert (code, err) == (0, "")
    for part in ("augmentation: score", "students: learn", "serving", "lake", "where one machine ends"):
        assert part in out
    for command in ("exfm capacity CONFIG --from RUN", "bench_capacity", "bench_pending", "bench_serving"):
        assert command in out


def test_the_json_adds_up_and_options_change_what_they_name(exfm):
    def priced(*options: object):
        return json.loads(exfm(DEMO, "--impressions-per-s", 1000, "--json", *options)[1])

    one = priced("--cores-per-machine", 2, "--memory-gb", 64)
    assert one["cores"] == pytest.approx(sum(term["cores"] for term in one["terms"]))
    assert one["memory_bytes"] == pytest.approx(sum(size["bytes"] for size in one["memory"]))
    assert (one["machines"], one["machine"]) == (1, {"cores": 2, "memory_bytes": 64e9})
    many = priced("--cores-per-machine", 2, "--memory-gb", 64, "--students", 500)
    assert many["cores"] > 20 * one["cores"]
    assert many["machines"] > 10
    assert many["extrapolated"]
    assert priced("--feedback-per-s", 500)["terms"][1]["events"] > one["terms"][1]["events"]
    assert priced("--set", "teacher.model.layers=6")["workers"]["teacher"] > one["workers"]["teacher"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([DEMO, "--impressions-per-s", 0], "give a number above 0"),
        ([DEMO, "--impressions-per-s", -5], "give a number above 0"),
        ([DEMO, "--impressions-per-s", 1, "--feedback-per-s", -1], "give 0 or more"),
        ([DEMO, "--impressions-per-s", 1, "--cores-per-machine", 0], "give a machine more than 0"),
        ([DEMO, "--impressions-per-s", 1, "--memory-gb", "nan"], "give a machine more than 0"),
        ([DEMO, "--impressions-per-s", 1, "--students", -1], "--students"),
        ([DEMO, "--impressions-per-s", 1, "--set", "students=[]", "--students", 3], "no student"),
        ([DEMO, "--impressions-per-s", 1, "--set", "teacher.nothing=1"], "teacher.nothing"),
        (["no-such.yaml", "--impressions-per-s", 1], "no-such.yaml"),
        ([DEMO, "--impressions-per-s", 1, "--from", "no-such-run"], "no run in no-such-run"),
        ([DEMO], "--impressions-per-s"),
    ],
)
def test_what_cannot_be_priced_is_refused_in_words(exfm, arguments, words):
    code, out, err = exfm(*arguments)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err

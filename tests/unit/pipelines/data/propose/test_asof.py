"""As-of rates that `exfm init` proposes, with their evidence; those that it does not."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.cli.console import app
from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from pipelines.data.propose.config_text import Proposal
from pipelines.data.propose.proposal import begin
from streaming.schema import AsOfFeature
from tests.support.streams.foreign_files import stored

ROWS, USERS = 12_000, 400


def shown(seed: int = 0, **changes: object) -> pa.Table:
    """Shown ads, one every 30 s, of users of whom some click at nearly all and many at none."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, USERS, ROWS)
    columns = {
        "event_time": 1_700_000_000 + 30 * np.arange(ROWS),
        "user_id": user + 5000,
        "item_id": rng.integers(0, 60, ROWS),
        "device": rng.choice(["phone", "desk", "tv"], ROWS),
        "country": np.array(["de", "fr", "it"])[user % 3],
        "click": (rng.random(ROWS) < rng.beta(0.4, 1.2, USERS)[user]).astype(int),
    }
    return pa.table({name: values for name, values in (columns | changes).items() if values is not None})


def proposed(tmp_path, table: pa.Table) -> Proposal:
    """The proposal for these rows, whose config has no problems."""
    proposal = begin(stored(tmp_path / "rows.parquet", table), tmp_path / "mine.yaml")
    assert not check_config(load(proposal.config)).stops
    return proposal


def test_a_rate_that_pays_is_proposed_with_its_evidence(tmp_path):
    proposal = proposed(tmp_path, shown())
    asof = proposal.asof
    (rate,) = asof.taken
    assert (rate.by, rate.half_life_s) == (("user_id",), None)
    assert rate.after < 0.95 * rate.before
    assert load(proposal.config).rows.asof.features == (AsOfFeature(name="user_id_rate", by="user_id", rate="ctr"),)
    evidence = r"rate: ctr} +# NE \.8\d{3} -> \.7\d{3} of a regression on the first 12,000 rows, without it and with"
    assert re.search(evidence, proposal.config.read_text())
    tried = {rate.by for rate in asof.rates}
    assert ("user_id", "device") in tried
    assert ("user_id", "country") not in tried  # it follows from the user


def test_the_screen_shows_what_was_tried_and_what_it_was_worth(tmp_path):
    path, out = stored(tmp_path / "rows.parquet", shown()), tmp_path / "mine.yaml"
    command = ["init", str(path), "-o", str(out)]
    screen = CliRunner().invoke(app, command).output
    assert re.search(r"as-of rates: NE of a regression on the first 12,000 rows, \.8\d{3} without", screen)
    assert re.search(r"user_id +\.7\d{3} +\.7\d{3} +\d+\.\d\d user_id_rate", screen)
    assert re.search(r"user_id × device +\.7\d{3} +– +\d+\.\d\d left out", screen)
    rates = json.loads(CliRunner().invoke(app, [*command, "--force", "--json"]).output)["asof"]
    assert [rate["name"] for rate in rates if rate["proposed"]] == ["user_id_rate"]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_proposed_where_nothing_pays(tmp_path, seed):
    chance = (np.random.default_rng(seed).random(ROWS) < 0.2).astype(int)
    proposal = proposed(tmp_path, shown(seed, click=chance))
    assert len(proposal.asof.rates) > 4
    assert proposal.asof.taken == []
    assert "asof" not in proposal.config.read_text()


def test_labels_count_from_when_they_come(tmp_path):
    """Of labels that come after the last row of their user nothing is known in time."""
    table = shown()
    clicked = np.array(table["click"])
    late = np.where(clicked, 30.0 * ROWS, 0.0)
    assert proposed(tmp_path, table.append_column("click_delay_s", pa.array(late))).asof.taken == []
    soon = np.where(clicked, 20.0, 0.0)
    assert proposed_again(tmp_path, table.append_column("click_delay_s", pa.array(soon))).asof.taken


def proposed_again(tmp_path, table: pa.Table) -> Proposal:
    return begin(stored(tmp_path / "rows.parquet", table), tmp_path / "mine.yaml", force=True)


def test_rows_out_of_order_are_taken_in_order_of_time(tmp_path):
    table = shown()
    in_order = proposed(tmp_path, table).asof
    mixed = table.take(np.random.default_rng(1).permutation(ROWS))
    assert proposed_again(tmp_path, mixed).asof == in_order


def test_of_rows_without_times_nothing_is_known_when_they_are_shown(tmp_path):
    assert proposed(tmp_path, shown(event_time=None)).asof.rates == ()


def in_hindsight() -> pa.Table:
    """Pairs of user and item that come three times each, all with the label of the pair but for one in fifty rows."""
    rng = np.random.default_rng(0)
    pair = rng.permutation(np.repeat(np.arange(ROWS // 3), 3))
    bought = (rng.random(ROWS // 3) < 0.2)[pair] ^ (rng.random(ROWS) < 0.02)
    return shown(user_id=5000 + pair % 160, item_id=pair // 160, click=bought.astype(int))


def test_a_label_that_was_set_in_hindsight_is_named_and_nothing_is_proposed_over_it(tmp_path):
    proposal = proposed(tmp_path, in_hindsight())
    (finding,) = (finding for finding in proposal.findings if finding.id == "init.label-in-hindsight")
    assert (finding.severity, finding.where) == ("warn", "label `click`")
    assert re.match(r"9\d % of [78],\d{3} rows that repeat a pair of `user_id` and `item_id` have", finding.seen)
    assert "by chance 6" in finding.seen
    assert proposal.asof.rates == ()
    text = proposal.config.read_text()
    assert "# label `click`: 9" in text
    assert "asof" not in text


def test_users_who_click_at_the_same_ads_again_and_again_are_no_hindsight(tmp_path):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 50, ROWS), rng.integers(0, 25, ROWS)
    likes = rng.beta(1.0, 3.0, 1250)[user * 25 + item]
    table = shown(user_id=5000 + user, item_id=item, click=(rng.random(ROWS) < likes).astype(int))
    assert not [finding for finding in proposed(tmp_path, table).findings if finding.id == "init.label-in-hindsight"]


@pytest.mark.slow
def test_rates_pay_on_movie_ratings(tmp_path, real_stream):
    proposal = begin(real_stream("movielens_1m_stream.parquet"), tmp_path / "mine.yaml")
    rates = {rate.name: rate for rate in proposal.asof.taken}
    assert list(rates) == ["user_id_recent_rate", "item_id_rate", "user_id_genres_rate"]
    assert proposal.asof.without > 0.88
    assert rates["user_id_genres_rate"].after < 0.845
    assert not [finding for finding in proposal.findings if finding.id == "init.label-in-hindsight"]


def test_the_shops_label_is_named_as_set_in_hindsight(tmp_path, real_stream):
    proposal = begin(real_stream("jd_browse_stream.parquet"), tmp_path / "mine.yaml")
    (finding,) = (finding for finding in proposal.findings if finding.id == "init.label-in-hindsight")
    assert "93 % of 14,917 rows that repeat a pair of `user_id` and `sku_id`" in finding.seen
    assert proposal.asof.rates == ()

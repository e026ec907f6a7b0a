"""Which cron texts a schedule takes."""

import pytest

from flows.schedule import cron_schedule
from silos.errors import UserError


@pytest.mark.parametrize("name", ["hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually", "DAILY"])
def test_an_alias_that_prefect_takes_is_taken(name: str) -> None:
    schedule = cron_schedule(f" @{name} ")
    assert (schedule.cron, schedule.timezone) == (f"@{name}", "UTC")


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 30-31 2 *", "0 0 31 4,6,9,11 *"])
def test_a_cron_that_matches_no_date_is_refused(cron: str) -> None:
    with pytest.raises(UserError, match="matches no date"):
        cron_schedule(cron)


@pytest.mark.parametrize("cron", ["", "@reboot", "@every 5m", "R R * * *", "* * * * * *", "0 0 32 * *"])
def test_a_text_that_is_no_schedule_is_refused_with_what_is_taken(cron: str) -> None:
    with pytest.raises(
        UserError, match="expected five fields or one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly"
    ):
        cron_schedule(cron)
